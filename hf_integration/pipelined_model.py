"""A pipeline that a training loop of one's own can call like the model it was made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_integration.errors import TrainingInputError
from hf_integration.last_stage import LastStage, MicroBatch, loss_of
from hf_integration.prediction import cut, from_last_stage, stage_logits

UNLABELLED = -100
"""What transformers' losses leave out."""


class PipelinedModel(nn.Module):
    """Stands for a causal language model whose stages are on several ranks.

    In training mode a call is a whole optimizer step: the batch is cut along its first dim into the
    micro-batches, which go forward and back through all stages, and the optimizer steps. In evaluation mode
    it is a forward pass. All ranks of a replica must make the same calls.
    """

    def __init__(self, engine: Any, whole: PreTrainedModel, micro_batches: int) -> None:
        """Take the pipeline's engine, the model that it was made of, and the micro-batches of a step."""
        super().__init__()
        self.engine, self.config = engine, whole.config
        self._micro_batches = micro_batches
        self._whole = [whole]  # in a list: its parameters are not this module's
        self.stepped_with: torch.Tensor | None = None
        """The loss of the last step, until its backward pass is asked for."""
        engine.module.loss_fn = loss_of(self._loss, micro_batches)

    def forward(self, **batch: torch.Tensor) -> CausalLMOutputWithPast:
        """Return the loss of a batch, as the whole model would; in evaluation mode its logits too.

        Args:
            batch: ``input_ids`` `[batch, seq]` and whatever else the model takes; ``labels`` in training.

        Raises:
            TrainingInputError: there are no labels to train on, or the last step's loss has not been handed
                to ``accelerator.backward``.
        """
        if not self.training:
            return self._evaluate(batch)
        if batch.get("labels") is None:
            raise TrainingInputError(
                "the batch has no labels, without which a pipeline cannot be trained: its loss is computed "
                "on the last stage's rank; give labels, or call model.eval() first"
            )
        if self.stepped_with is not None:
            raise TrainingInputError(
                "the last step's loss has not been handed to accelerator.backward; a call of a pipelined "
                "model in training mode is a whole step, so gradients of two calls are not added up: give "
                "larger batches and more micro_batches"
            )
        items = float((batch["labels"][..., 1:] != UNLABELLED).sum().clamp(min=1))
        pieces = [MicroBatch(piece, items) for piece in cut(batch, self._micro_batches)]
        batches = [piece.for_engine() for piece in pieces]
        batches += [pieces[-1].for_engine(filler=True)] * (self._micro_batches - len(pieces))
        self.engine.train_batch(iter(batches))
        # Requires a gradient, so that a loop that hands it to `backward` finds what it expects.
        self.stepped_with = self.engine.dp_group_loss.detach().clone().requires_grad_()
        return CausalLMOutputWithPast(loss=self.stepped_with)

    def _loss(self, logits: torch.Tensor, inputs: dict[str, Any], items: float | None) -> torch.Tensor:
        count = torch.tensor(items, device=logits.device)
        outputs = LastStage(self._whole[0], logits, training=True)(**inputs, num_items_in_batch=count)
        assert outputs.loss is not None
        return outputs.loss

    @torch.no_grad()
    def _evaluate(self, batch: dict[str, torch.Tensor]) -> CausalLMOutputWithPast:
        first, _ = MicroBatch(batch, None).for_engine()
        logits = from_last_stage(self.engine, stage_logits(self.engine, first))
        return LastStage(self._whole[0], logits, training=False)(**batch)
