"""Sequences of unlike length as one batch, padded to the right, with masks and labels that say so."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from hf_integration.data.sequences import NO_LOSS


@dataclass(frozen=True)
class Collator:
    """Makes a batch of the examples of `Sequences` and `PackedRows`.

    The label of the first token is always -100. Nothing predicts it, so the loss is the same, and every
    version of the Trainer then counts the same targets: ``num_items_in_batch``, by which gradient
    accumulation averages over tokens, is the number of labels other than -100, from the second token on in
    transformers 5.24 and from the first in earlier ones.

    Attributes:
        pad_id: token id to fill up with; what it is does not matter, since it is masked and has no label.
        multiple: the length of a batch is rounded up to a multiple of this, so that few shapes occur.
        longest: most tokens that the model takes, which rounding does not exceed; None for any number.
        mask: whether to give an ``attention_mask``; without it all examples must be of one length.
    """

    pad_id: int = 0
    multiple: int = 1
    longest: int | None = None
    mask: bool = True

    def __call__(self, examples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return ``input_ids``, ``labels`` and a mask, ``[batch, tokens]``.

        The mask is ``attention_mask`` (1: a token, 0: padding), or ``position_ids`` if the examples have
        them: padding is then one more document, which no other one sees.
        """
        lengths = [len(example["input_ids"]) for example in examples]
        length = self.padded(max(lengths))
        if not self.mask and min(lengths) != length:
            raise ValueError(f"sequences of {min(lengths)} to {length} tokens cannot be told from padding")
        batch = {
            "input_ids": fill(examples, "input_ids", length, self.pad_id),
            "labels": fill(examples, "labels", length, NO_LOSS),
        }
        batch["labels"][:, 0] = NO_LOSS
        if "position_ids" in examples[0]:
            rows = [
                torch.cat([example["position_ids"], torch.arange(length - used)])
                for example, used in zip(examples, lengths, strict=True)
            ]
            batch["position_ids"] = torch.stack(rows)
        elif self.mask:
            used = torch.tensor(lengths)[:, None]
            batch["attention_mask"] = (torch.arange(length)[None] < used).long()
        return batch

    def padded(self, length: int) -> int:
        """Return the length of a batch whose longest sequence has ``length`` tokens."""
        rounded = -(-length // self.multiple) * self.multiple
        return rounded if self.longest is None else max(length, min(rounded, self.longest))


def fill(examples: list[dict[str, torch.Tensor]], key: str, length: int, value: int) -> torch.Tensor:
    """Return ``key`` of all ``examples``, filled up with ``value``, ``[batch, length]``."""
    return torch.stack([pad(item[key], (0, length - len(item[key])), value=value) for item in examples])
