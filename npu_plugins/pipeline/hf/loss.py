"""The loss of the last stage: the one that the Hugging Face model computes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from npu_plugins.pipeline.errors import PipelineError

PARTS = "parts"


class CausalLoss:
    """transformers' loss of a causal language model: labels are shifted, -100 does not count.

    With ``num_items_in_batch``, the number of label tokens in all micro-batches of all replicas, as
    transformers' Trainer counts them, the loss of a step is the mean over these tokens. Without, it is the
    mean over micro-batches of their means.
    """

    KEYS = ("labels", "shift_labels", "num_items_in_batch")
    """Of the batch, that go to the loss."""

    def __init__(self, function: Callable[..., torch.Tensor], config: Any) -> None:
        self.function, self.vocabulary = function, config.vocab_size

    @classmethod
    def told(cls, batch: Mapping[str, Any], parts: int) -> dict[str, Any]:
        """Return what the loss of a micro-batch needs to know.

        Args:
            batch: the collator's dict.
            parts: micro-batches of the step, over all replicas.
        """
        return {**{key: batch[key] for key in cls.KEYS if batch.get(key) is not None}, PARTS: parts}

    def __call__(self, logits: torch.Tensor, told: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss of logits `[batch, seq, vocabulary]`.

        Raises:
            PipelineError: the batch had no labels.
        """
        known = {key: told[key] for key in self.KEYS if key in told}
        if "labels" not in known and "shift_labels" not in known:
            raise PipelineError(
                "the batch has no labels; add them (in transformers, DataCollatorForLanguageModeling with "
                "mlm=False makes them), or evaluate with compute_loss=False"
            )
        known.setdefault("labels", None)
        loss = self.function(logits=logits, vocab_size=self.vocabulary, **known)
        # The engine takes the mean over micro-batches and replicas.
        return loss * told[PARTS] if "num_items_in_batch" in known else loss
