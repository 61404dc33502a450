"""The training program's flags for LoRA."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from hf_integration.errors import TrainingInputError

ALL_LINEAR = "all-linear"
BIASES = ("none", "all", "lora_only")


@dataclass
class LoraArguments:
    """Whether to train low-rank adapters instead of the model, and which."""

    lora_r: int | None = field(
        default=None,
        metadata={"help": "Train LoRA adapters of this rank (8, say); the model itself stays as it is."},
    )
    lora_alpha: int | None = field(
        default=None, metadata={"help": "Adapters count alpha / rank. Default: twice the rank."}
    )
    lora_dropout: float | None = field(
        default=None, metadata={"help": "Dropout of the adapters' inputs. Default: 0."}
    )
    lora_target_modules: list[str] | None = field(
        default=None,
        metadata={
            "help": "Names of the layers with adapters, such as q_proj v_proj. "
            f"Default: {ALL_LINEAR}, all but the output layer."
        },
    )
    lora_bias: str | None = field(
        default=None, metadata={"help": f"Biases to train besides: {', '.join(BIASES)}. Default: none."}
    )
    lora_use_rslora: bool = field(
        default=False, metadata={"help": "Adapters count alpha / sqrt(rank) instead."}
    )
    lora_merge: bool = field(
        default=False,
        metadata={
            "help": "Save the model with the adapters merged into it; by default the adapters alone, in "
            "peft's format."
        },
    )

    def __post_init__(self) -> None:
        if self.lora_r is None:
            values = {each.name: getattr(self, each.name) for each in fields(LoraArguments)}
            given = [name for name, value in values.items() if value is not None and value is not False]
            if given:
                raise TrainingInputError(f"--{given[0]} needs adapters; give their rank with --lora_r")
            return
        if self.lora_r < 1:
            raise TrainingInputError(f"--lora_r is {self.lora_r}; give a rank of 1 or more")
        if self.lora_dropout is not None and not 0 <= self.lora_dropout < 1:
            raise TrainingInputError(f"--lora_dropout is {self.lora_dropout}; give a probability below 1")
        if self.lora_bias not in (None, *BIASES):
            raise TrainingInputError(f"--lora_bias is {self.lora_bias}; choose one of {', '.join(BIASES)}")

    def peft_config(self) -> Any:
        """Return peft's configuration; None without LoRA."""
        if self.lora_r is None:
            return None
        from peft import LoraConfig

        modules = self.lora_target_modules or [ALL_LINEAR]
        settings: dict[str, Any] = {
            "r": self.lora_r,
            "lora_alpha": 2 * self.lora_r if self.lora_alpha is None else self.lora_alpha,
            "lora_dropout": self.lora_dropout or 0.0,
            "target_modules": ALL_LINEAR if modules == [ALL_LINEAR] else modules,
            "bias": self.lora_bias or "none",
            "use_rslora": self.lora_use_rslora,
        }
        return LoraConfig(task_type="CAUSAL_LM", **settings)
