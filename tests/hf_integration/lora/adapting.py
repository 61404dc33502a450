"""Training runs of LoRA adapters: with `NpuTrainer`, and with peft and the plain Trainer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from tests.hf_integration.divided import Run, Sentences, make_model

STEPS = 6
LAYERS = {"llama": 4, "qwen2": 2, "gpt2": 2}


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
        "gpt2": {"target_modules": ["c_attn", "c_proj", "c_fc"], "bias": "lora_only", "lora_bias": True},
    }
    return LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **{**chosen[family], **settings})


def adapting(family: str, settings: dict[str, Any] | None = None, **more: Any) -> Run:
    """Return a run that trains adapters."""
    more = {"steps": STEPS, "layers": LAYERS[family], **more}
    return Run(family, trainer={"peft_config": lora(family, **(settings or {}))}, **more)


class PlainPeft(Trainer):
    """The Trainer with peft's own model, as one writes it without this package."""

    mesh = None

    def __init__(self, model: Any, args: Any, peft_config: Any, weights: Any, **keywords: Any) -> None:
        from peft import get_peft_model
        from transformers import set_seed

        set_seed(args.seed)
        super().__init__(get_peft_model(model, peft_config), args, **keywords)


def given_a_peft_model(model: Any, args: Any, peft_config: Any, **keywords: Any) -> Any:
    """Make the trainer of a model that has its adapters already, and whose attention has dropout."""
    from peft import get_peft_model

    from hf_integration.npu_trainer import NpuTrainer

    model.config.attn_pdrop = 0.2
    torch.manual_seed(3)
    return NpuTrainer(get_peft_model(model, peft_config), args, **keywords)


def sums(trainer: Any) -> dict[str, float]:
    """Return the sum of each adapter's matrix, of the part that this rank has."""
    named = trainer.deepspeed.module.named_parameters()
    return {name: float(each.double().sum()) for name, each in named if ".lora_" in name}


def saved(trainer: Any) -> dict[str, float]:
    """Save the adapters, and evaluate."""
    trainer.save_model(f"{trainer.args.output_dir}/adapters")
    return trainer.evaluate()


def saved_and_merged(trainer: Any) -> dict[str, float]:
    """Save the adapters and the model that they are merged into, evaluate, and count what is trained."""
    folder = trainer.args.output_dir
    trainer.save_model(f"{folder}/adapters")
    trainer.save_merged_model(f"{folder}/merged")
    module = trainer.deepspeed.module
    trained = [each for each in module.parameters() if each.requires_grad]
    states = trainer.optimizer.optimizer.state
    return {
        **trainer.evaluate(),
        "trained": float(sum(each.numel() for each in trained)),
        "exp_avg": float(sum(each["exp_avg"].numel() for each in states.values())),
        "gradients of frozen": float(
            sum(each.grad is not None for each in module.parameters() if not each.requires_grad)
        ),
    }


def loss_of(model: Any, folder: Path) -> float:
    """Return what the plain Trainer finds for a model on the sequences that runs evaluate."""
    from transformers import TrainingArguments

    args = TrainingArguments(
        str(folder), use_cpu=True, per_device_eval_batch_size=2, report_to="none", disable_tqdm=True
    )
    return Trainer(model, args, eval_dataset=Sentences(11, seed=2)).evaluate()["eval_loss"]


def loaded(family: str, folder: Path) -> Any:
    """Return the model of a run with adapters from a directory, as peft loads them."""
    from peft import PeftModel

    return PeftModel.from_pretrained(make_model(family, LAYERS[family]), str(folder))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return what an adapter's file holds."""
    from safetensors.torch import load_file

    return load_file(folder / "adapter_model.safetensors")


def logits_sum(model: Any, device: Any = "cpu") -> float:
    """Return the sum of what a model makes of a sequence, without signs."""
    model.eval()  # which DeepSpeed's engine does not return
    with torch.no_grad():
        return float(model(input_ids=torch.arange(3, 15, device=device)[None]).logits.abs().sum())


def merged_under_zero3(trainer: Any) -> float:
    """Save the merged model where no rank has whole weights, and look at what is trained."""
    trainer.save_merged_model(f"{trainer.args.output_dir}/merged")
    return logits_sum(trainer.deepspeed, trainer.args.device)
