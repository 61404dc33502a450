"""What all decoder layers of a stage share: attention masks, positions and rotary tables.

Each stage makes them again from the padding mask and the position ids of the batch, which are all that
travels besides the hidden states: those are a few bytes per token and mostly absent, while a mask has one
entry per pair of tokens and a rotary table as many as the hidden states. They are made by the functions that
the model's own forward pass calls, so that every attention implementation gets what it gets there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from npu_plugins.pipeline.hf.families import Family

FULL, SLIDING = "full_attention", "sliding_attention"


class Preparation:
    """Makes what the decoder layers take besides hidden states.

    No module, so that a change of the model's dtype leaves the rotary frequencies as exact as transformers
    keeps them.
    """

    def __init__(self, config: Any, family: Family, rotary: nn.Module | None) -> None:
        self.config, self.rotary = config, rotary
        self.kinds = _kinds(config, family)
        """The kind of mask of each decoder layer."""

    def to(self, device: torch.device) -> Preparation:
        """Move the rotary frequencies, in place."""
        if self.rotary is not None:
            self.rotary.to(device)
        return self

    def __call__(self, value: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
        """Return masks, position ids `[batch or 1, seq]` and rotary tables.

        Args:
            value: what the stage was given: hidden_states `[batch, seq, hidden]`, or input_ids `[batch, seq]`
                in the first one; attention_mask and position_ids where the batch has them.
            dtype: of the hidden states.
        """
        like = value["hidden_states"] if "hidden_states" in value else value["input_ids"]
        batch, length = like.shape[:2]
        hidden = torch.empty(batch, length, 0, dtype=dtype, device=like.device)
        positions = value.get("position_ids")
        if positions is None:
            positions = torch.arange(length, device=like.device).unsqueeze(0)
        masks = {
            kind: _mask_function(kind)(
                config=self.config,
                inputs_embeds=hidden,
                attention_mask=value.get("attention_mask"),
                position_ids=positions,
            )
            for kind in dict.fromkeys(self.kinds)
        }
        tables = None if self.rotary is None else self.rotary(hidden, position_ids=positions)
        return {"masks": masks, "position_ids": positions, "position_embeddings": tables}


def _kinds(config: Any, family: Family) -> list[str]:
    count = config.num_hidden_layers
    if family.mask == "by-layer":
        return list(config.layer_types)
    windowed = family.mask == "window" and config.sliding_window is not None
    return [SLIDING if windowed else FULL] * count


def _mask_function(kind: str) -> Callable[..., Any]:
    from transformers import masking_utils

    function = (
        masking_utils.create_sliding_window_causal_mask
        if kind == SLIDING
        else masking_utils.create_causal_mask
    )
    # transformers 5.24 calls it cache, earlier versions past_key_values.
    name = "cache" if "cache" in inspect.signature(function).parameters else "past_key_values"

    def call(**inputs: Any) -> Any:
        return function(**inputs, **{name: None})

    return call
