"""The parts of a decoder as layers of a pipeline: each takes and returns a dict whose hidden states change.

A layer holds the modules of transformers under the names in `places`, which say where the model has them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from npu_plugins.pipeline.hf.preparation import Preparation

HIDDEN, SHARED = "hidden_states", "shared"


class Part(nn.Module):
    """Modules of a Hugging Face model that make one layer of the pipeline."""

    def __init__(self, **parts: tuple[str, nn.Module]) -> None:
        """Take (path within the model, module) of each part, by the name it gets here."""
        super().__init__()
        self.places = {name: path for name, (path, _) in parts.items()}
        for name, (_, module) in parts.items():
            self.add_module(name, module)


class TokenEmbedding(Part):
    """input_ids `[batch, seq]` → hidden states `[batch, seq, hidden]`.

    A tied output layer is held beside the embedding, with the same parameter, on each rank that has one of
    them.
    """

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        """Look the ids up; the rest of the batch is passed on."""
        rest = {key: each for key, each in value.items() if key != "input_ids"}
        return {**rest, HIDDEN: self.embedding(value["input_ids"])}


class PositionEmbedding(Part):
    """Adds learned positions to the hidden states, and applies dropout (GPT-2)."""

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        """Add the vectors of position_ids, by default of 0, 1, 2, …"""
        hidden, positions = value[HIDDEN], value.get("position_ids")
        if positions is None:
            positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        return {**value, HIDDEN: self.dropout(hidden + self.positions(positions))}


class DecoderLayer(Part):
    """One decoder layer of transformers."""

    def __init__(
        self, path: str, layer: nn.Module, preparation: Preparation, kind: str, is_last: bool
    ) -> None:
        """Take the layer.

        Args:
            path: of the layer within the model.
            layer: the module.
            preparation: for when it is called outside a stage, which prepares once for all its layers.
            kind: of its attention mask.
            is_last: whether what it returns needs no masks any more.
        """
        super().__init__(layer=(path, layer))
        self.preparation, self.kind, self.is_last = preparation, kind, is_last

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        """Run the layer."""
        hidden = value[HIDDEN]
        shared = value.get(SHARED) or self.preparation(value, hidden.dtype)
        inputs = {"attention_mask": shared["masks"][self.kind], "position_ids": shared["position_ids"]}
        if shared["position_embeddings"] is not None:
            inputs["position_embeddings"] = shared["position_embeddings"]
        hidden = self.layer(hidden, use_cache=False, **inputs)
        return {HIDDEN: hidden} if self.is_last else {**value, HIDDEN: hidden}


class FinalNorm(Part):
    """The norm after the last decoder layer."""

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        """Normalise the hidden states."""
        return {HIDDEN: self.norm(value[HIDDEN])}


class Head(Part):
    """Hidden states `[batch, seq, hidden]` → logits `[batch, seq, vocabulary]`."""

    def forward(self, value: dict[str, Any]) -> torch.Tensor:
        """Return the logits."""
        return self.head(value[HIDDEN])


def tied_head(embedding: TokenEmbedding, value: dict[str, Any]) -> torch.Tensor:
    """The output layer whose weight is the embedding's."""
    return embedding.head(value[HIDDEN])
