"""What one rank holds of the model: its parameters after tensor, expert and pipeline parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ds_configs.models import ModelShape
from ds_configs.models.stages import layers_of_stages
from ds_configs.models.tensors import Tensor, embedding_tensors, head_tensors, layer_tensors


@dataclass(frozen=True)
class RankPart:
    """One pipeline stage's share of the model on one rank.

    A *run* is a tensor's number of elements on this rank and how often the stage has it: 80 equal layers are
    one entry for each of their tensors.
    """

    layers: range
    first: bool
    last: bool
    runs: tuple[tuple[int, int, bool], ...]
    """(elements, times, whether it belongs to an expert)."""
    output: int
    """Elements of the output layer's matrix, whose gradient comes first; 0 where another stage has it."""

    @property
    def dense(self) -> int:
        """Elements that all data-parallel ranks share."""
        return sum(numel * times for numel, times, expert in self.runs if not expert)

    @property
    def expert(self) -> int:
        """Elements of experts, which dp/ep ranks share."""
        return sum(numel * times for numel, times, expert in self.runs if expert)

    @property
    def total(self) -> int:
        """All elements."""
        return self.dense + self.expert

    @property
    def largest(self) -> int:
        """Elements of the largest tensor."""
        return max(numel for numel, _, _ in self.runs)

    def smaller_than(self, threshold: int) -> int:
        """Return the elements of the tensors that have at most ``threshold``."""
        return sum(numel * times for numel, times, _ in self.runs if numel <= threshold)


def tensor_share(tensor: Tensor, tp: int, ep: int, vocab_split: bool) -> int:
    """Return the elements of ``tensor`` on one of ``tp`` × ``ep`` ranks; what does not divide is rounded
    up."""
    if tensor.split == "expert":
        return -(-tensor.numel // ep)
    if tensor.split in ("column", "row") or (tensor.split == "vocab" and vocab_split):
        return -(-tensor.numel // tp)
    return tensor.numel


@lru_cache(maxsize=4096)
def rank_part(shape: ModelShape, tp: int, ep: int, pp: int, stage: int, vocab_split: bool) -> RankPart:
    """Return what a rank of pipeline stage ``stage`` holds.

    A tied output layer is held by the last stage too, as a copy (DeepSpeed's TiedLayerSpec). An untied one
    is always divided over tp (AutoTP makes it column parallel in training), the embedding if
    ``vocab_split`` says so.
    """
    layers = layers_of_stages(shape.layers, pp)[stage]
    first, last = stage == 0, stage == pp - 1
    counts: dict[tuple[int, bool], int] = {}

    def add(tensors: list[Tensor], times: int, split: bool = vocab_split) -> None:
        for tensor in tensors:
            key = (tensor_share(tensor, tp, ep, split), tensor.split == "expert")
            counts[key] = counts.get(key, 0) + times

    if first:
        add(embedding_tensors(shape), 1)
    sparse = sum(shape.is_moe_layer(layer) for layer in layers)
    for moe, times in ((True, sparse), (False, len(layers) - sparse)):
        if times:
            add(layer_tensors(shape, moe), times)
    if last:
        add(head_tensors(shape), 1, split=True)
        if shape.tied_embeddings and not first:
            add(embedding_tensors(shape)[:1], 1)
    runs = tuple((numel, times, expert) for (numel, expert), times in sorted(counts.items()))
    table = tensor_share(embedding_tensors(shape)[0], tp, ep, vocab_split or not shape.tied_embeddings)
    return RankPart(layers, first, last, runs, table if last else 0)
