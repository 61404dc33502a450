"""Several whole documents in one row, each with positions of its own, so that none sees another.

transformers 5.24 makes the attention mask of such a row from ``position_ids`` alone
(``masking_utils.find_packed_sequence_indices``), and only without ``attention_mask`` and without a cache.
Models whose masks are made elsewhere pass the positions over without a word; `check_packing` refuses them.
"""

from __future__ import annotations

import bisect
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PretrainedConfig

from hf_integration.data.sequences import NO_LOSS, Sequences
from hf_integration.errors import TrainingInputError

PackingOrder = Literal["sequential", "best_fit"]

# Families whose logits in a row equal those of each document alone, with either attention below; tested.
PACKABLE_FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma",
    "gemma3_text",
    "phi",
    "phi3",
    "gpt2",
    "gpt_neox",
    "granite",
    "olmo2",
    "smollm3",
    "starcoder2",
)
PACKABLE_ATTENTION = ("sdpa", "eager")


def pack_sequentially(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """Return rows of consecutive sequences, each row as full as the next sequence lets it be.

    Args:
        lengths: tokens of each sequence, none more than ``capacity``.
        capacity: most tokens of a row.
    """
    rows: list[list[int]] = []
    space = 0
    for index, length in enumerate(lengths.tolist()):
        if length > space:
            rows.append([])
            space = capacity
        rows[-1].append(index)
        space -= length
    return rows


def pack_best_fit(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """Return rows made by best-fit decreasing: the longest first, each into the fullest row that takes it.

    At most 11/9 of the fewest rows possible, and one more (Johnson et al. 1974,
    https://doi.org/10.1137/0203025). Rows stand in the order of their first sequence, and sequences within
    a row in theirs.
    """
    rows: list[list[int]] = []
    # Rows by the space they have left, and those spaces in order: there are at most `capacity` of them.
    by_space: dict[int, list[int]] = {}
    spaces: list[int] = []
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        place = bisect.bisect_left(spaces, length)
        if place == len(spaces):
            row, space = len(rows), capacity
            rows.append([])
        else:
            space = spaces[place]
            row = by_space[space].pop()
            if not by_space[space]:
                del by_space[space], spaces[place]
        rows[row].append(index)
        left = space - length
        if left:
            if left not in by_space:
                bisect.insort(spaces, left)
            by_space.setdefault(left, []).append(row)
    return sorted(sorted(row) for row in rows)


class PackedRows(Dataset):
    """Rows of several sequences, with ``position_ids`` that begin anew at each.

    The label of a sequence's first token is -100: what precedes it is another document.
    """

    def __init__(self, sequences: Sequences, rows: list[list[int]]) -> None:
        self.rows = rows
        self._sequences = sequences

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return row ``index``: ``input_ids``, ``labels`` and ``position_ids``, int64, ``[tokens]``."""
        parts = [self._sequences[number] for number in self.rows[index]]
        ids = torch.cat([part["input_ids"] for part in parts])
        labels = torch.cat([part["labels"] for part in parts])
        positions = torch.cat([torch.arange(len(part["input_ids"])) for part in parts])
        return {
            "input_ids": ids,
            "labels": labels.masked_fill(positions == 0, NO_LOSS),
            "position_ids": positions,
        }


def pack(sequences: Sequences, capacity: int, order: PackingOrder) -> PackedRows:
    """Return ``sequences`` in rows of at most ``capacity`` tokens, packed in ``order``."""
    packer = {"sequential": pack_sequentially, "best_fit": pack_best_fit}[order]
    return PackedRows(sequences, packer(sequences.lengths, capacity))


def check_packing(config: PretrainedConfig, *, use_cache: bool, rows: int) -> None:
    """Raise TrainingInputError unless the model keeps packed documents apart.

    Args:
        config: of the built model, which then knows its attention implementation.
        use_cache: whether the forward pass fills a key-value cache.
        rows: rows in a batch of one device.
    """
    text = config.get_text_config()
    if text.model_type not in PACKABLE_FAMILIES:
        raise TrainingInputError(
            f"--packing: a {text.model_type} model is not known to keep packed documents apart; give "
            f"--packing none, or a model of {', '.join(PACKABLE_FAMILIES)}"
        )
    if use_cache:
        raise TrainingInputError(
            "--packing with --use_cache true: with a cache, attention crosses the packed documents; remove "
            "--use_cache"
        )
    attention = text._attn_implementation
    # Flash attention looks for restarting positions in batches of one row only (_is_packed_sequence).
    if attention in PACKABLE_ATTENTION or (attention == "flash_attention_2" and rows == 1):
        return
    raise TrainingInputError(
        f"--packing: with {attention} attention and {rows} row(s) in a batch, packed documents would see "
        f"each other; choose {' or '.join(PACKABLE_ATTENTION)}, or flash_attention_2 with batches of one row "
        "for training and evaluation"
    )
