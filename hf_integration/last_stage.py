"""The end of a pipeline as the Trainer's loss code sees it: a model that has computed its logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

LOSS_ARGUMENTS = ("num_items_in_batch", "shift_labels")
"""Keywords that transformers' causal models hand on to their loss function."""


class LastStage(nn.Module):
    """Stands for the whole model in `Trainer.compute_loss`, on the rank that has the logits.

    Called with a batch, it returns the logits that the pipeline computed from that batch and, where the batch
    has labels, the model's own loss of them. So the Trainer's label smoothing, a ``compute_loss_func`` and a
    ``compute_loss`` of one's own work without change.
    """

    def __init__(self, whole: PreTrainedModel, logits: torch.Tensor, training: bool) -> None:
        """Take the divided model, whose weights are not looked at, and logits `[batch, seq, vocab]`."""
        super().__init__()
        self.config, self.logits = whole.config, logits
        self._loss_function, self._name = whole.loss_function, whole._get_name()
        self.train(training)

    def forward(self, *, labels: torch.Tensor | None = None, **inputs: Any) -> CausalLMOutputWithPast:
        """Return logits, and the loss if there are labels."""
        loss = None
        if labels is not None:
            extra = {key: inputs[key] for key in LOSS_ARGUMENTS if inputs.get(key) is not None}
            loss = self._loss_function(self.logits, labels, vocab_size=self.config.vocab_size, **extra)
        return CausalLMOutputWithPast(loss=loss, logits=self.logits)

    def _get_name(self) -> str:
        """Return the class of the whole model, by which the Trainer knows whether labels are shifted."""
        return self._name


class MicroBatch(NamedTuple):
    """One batch of the Trainer's loop, as it waits for the others of its step."""

    inputs: Mapping[str, Any]
    items: float | None
    """The Trainer's ``num_items_in_batch``: of the whole step, over all replicas."""

    def for_engine(self, filler: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (what the first stage gets, what the loss gets).

        A filler is computed like the others, but its loss is zero.
        """
        first = {key: value for key, value in self.inputs.items() if key not in ("labels", "shift_labels")}
        return first, {"inputs": dict(self.inputs), "items": self.items, "filler": filler}


def loss_of(
    compute: Callable[[torch.Tensor, dict[str, Any], float | None], torch.Tensor], micro_batches: int
) -> Callable[[torch.Tensor, Mapping[str, Any]], torch.Tensor]:
    """Return the pipeline's loss function.

    Args:
        compute: (logits, inputs with labels, items of the step) → the loss as the Trainer would start its
            backward pass from: summed over the micro-batches of a step it is the loss of the step.
        micro_batches: of a step; the engine divides by it.
    """

    def loss(logits: torch.Tensor, told: Mapping[str, Any]) -> torch.Tensor:
        target = told["labels"]  # as `SplitModel.micro_batch` hands it on
        if target["filler"]:
            return logits.float().sum() * 0.0
        return compute(logits, dict(target["inputs"]), target["items"]) * micro_batches

    return loss
