"""Training low-rank adapters (LoRA) with peft's settings and files, also where the model is divided.

peft decides which layers get adapters, how large they are and what they begin with. Where the model is not
divided, the Trainer gets peft's own model. Where it is, the adapters are taken out of it, the plain model is
divided, and `npu_plugins.tensor_parallel.lora` puts each adapter on its divided layer.
"""

from hf_integration.lora.adapters import Lora, adapted
from hf_integration.lora.arguments import LoraArguments
from hf_integration.lora.report import describe
from hf_integration.lora.saving import save_adapters, save_merged, save_merged_undivided

__all__ = [
    "Lora",
    "LoraArguments",
    "adapted",
    "describe",
    "save_adapters",
    "save_merged",
    "save_merged_undivided",
]
