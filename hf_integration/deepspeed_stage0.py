"""Two mends for fp16 and bf16 without ZeRO (stage 0), where DeepSpeed 0.19.8 trains otherwise than with it.

Its ``FP16_Optimizer`` allocates Adam's state by a step on zero gradients. The moments stay zero but the step
count is one, so that the bias correction is a step ahead: the first update is a quarter smaller than Adam's.

Its ``step`` divides gradients by the loss scale, but ``engine.backward`` multiplies the loss by it only for
ZeRO's optimizers. Gradients come out too small by the scale: clipping never acts, small ones vanish in fp16,
and Adam's epsilon weighs. Both leave the loss some percent off after ten steps.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


def restart_step_counts(optimizer: Any) -> int:
    """Set every step count of ``optimizer``, wrapped or not, to zero and return how many were not.

    Valid only as long as no update has been made.
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    changed = 0
    for holder in [*optimizer.state.values(), *optimizer.param_groups]:
        count = holder.get("step", 0)
        if not count:
            continue
        changed += 1
        holder["step"] = torch.zeros_like(count) if isinstance(count, torch.Tensor) else 0
    return changed


class CountFromFirstStep(TrainerCallback):
    """Resets the optimizer's step counts when a run begins that continues no other."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reset the counts unless the run was resumed."""
        if state.global_step == 0 and kwargs.get("optimizer") is not None:
            restart_step_counts(kwargs["optimizer"])


def gradient_scale(engine: Any) -> float:
    """Return what ``engine`` divides gradients by without having multiplied the loss; 1: by nothing."""
    # loss_scale_config is what the optimizers without ZeRO have; those of ZeRO have a loss_scaler.
    scale = getattr(getattr(engine, "optimizer", None), "loss_scale_config", None)
    return 1.0 if scale is None or not scale.use_grad_scaling else float(scale.cur_scale)


def scale_gradients(loss: torch.Tensor, engine: Any) -> None:
    """Let ``loss.backward()`` start from the loss scale where ``engine`` will divide by it but not multiply.

    ``loss`` keeps its value, which the Trainer logs.
    """
    factor = gradient_scale(engine)
    if factor != 1.0 and loss.requires_grad:
        loss.register_hook(lambda gradient: gradient * factor)
