"""Training runs of LoRA adapters: with `NpuTrainer`, and with peft and the plain Trainer alone."""

from __future__ import annotations

from typing import Any

from transformers import Trainer

from tests.hf_integration.divided import Run

STEPS = 10


class PlainPeft(Trainer):
    """The Trainer with peft's own model, as one writes it without this package."""

    mesh = None

    def __init__(self, model: Any, args: Any, peft_config: Any, weights: Any, **keywords: Any) -> None:
        from peft import get_peft_model
        from transformers import set_seed

        set_seed(args.seed)
        super().__init__(get_peft_model(model, peft_config), args, **keywords)


def lora(family: str, **settings: Any) -> Any:
    """Return peft's configuration: another choice of layers and biases for each family."""
    from peft import LoraConfig

    chosen: dict[str, dict[str, Any]] = {
        "llama": {
            "target_modules": "all-linear",
            "alpha_pattern": {"o_proj": 2},
            "rank_pattern": {"up_proj": 2},
        },
        "qwen2": {"target_modules": ["q_proj", "v_proj", "down_proj"], "bias": "all", "use_rslora": True},
        "gpt2": {"bias": "lora_only", "lora_bias": True, "target_modules": ["c_attn", "c_proj", "c_fc"]},
    }
    return LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **{**chosen[family], **settings})


def adapting(family: str, **more: Any) -> Run:
    """Return a run that trains adapters."""
    settings = more.pop("settings", {})
    return Run(family, steps=STEPS, trainer={"peft_config": lora(family, **settings)}, **more)
