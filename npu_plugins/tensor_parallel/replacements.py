"""Modules and helpers that stand in a Hugging Face model where our layers alone do not fit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from npu_plugins.tensor_parallel.collectives import (
    copy_to_region,
    gather_from_region,
    reduce_from_region,
)
from npu_plugins.tensor_parallel.embedding import VocabParallelEmbedding
from npu_plugins.tensor_parallel.groups import check_group_serves, divide
from npu_plugins.tensor_parallel.linear import ColumnParallelLinear
from npu_plugins.tensor_parallel.loss import vocab_parallel_cross_entropy
from npu_plugins.tensor_parallel.merged import MergedColumnParallelLinear
from npu_plugins.tensor_parallel.random import RandomStreams
from npu_plugins.tensor_parallel.shard import Shard, mark


class StackedColumnParallelLinear(MergedColumnParallelLinear):
    """A merged column-parallel layer whose parts stay in one tensor, for models that cut them themselves."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[…, in]` → `[…, out/tp]`: the rank's piece of the first part, then of the second, …"""
        return ColumnParallelLinear.forward(self, x)


class ScaledVocabParallelEmbedding(VocabParallelEmbedding):
    """A vocabulary-parallel embedding whose vectors are multiplied by a constant, as Gemma's are."""

    def __init__(self, *sizes: int, embed_scale: torch.Tensor, **options: Any) -> None:
        """Take what `VocabParallelEmbedding` takes, and the constant (a scalar tensor)."""
        super().__init__(*sizes, **options)
        self.register_buffer("embed_scale", embed_scale.detach().clone(), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """`[batch, seq]` → `[batch, seq, hidden]`."""
        return super().forward(ids) * self.embed_scale.to(self.weight.dtype)


class HiddenParallelEmbedding(nn.Module):
    """An embedding of which every rank holds a piece of each vector (transformers' ``embedding_colwise``).

    Args:
        num_embeddings: ids.
        embedding_dim: length of a vector, over all ranks.
        group: the tensor-parallel process group.
        padding_idx: as in torch.nn.Embedding.
        dtype: of the weight, `[num_embeddings, embedding_dim/tp]`, which is made on the meta device.

    Raises:
        TensorParallelError: the ranks do not divide `embedding_dim`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        group: dist.ProcessGroup,
        padding_idx: int | None,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.group, self.padding_idx = group, padding_idx
        owner = f"HiddenParallelEmbedding({num_embeddings}, {embedding_dim})"
        length = divide(owner, "embedding_dim", embedding_dim, group.size())
        self.weight = nn.Parameter(torch.empty(num_embeddings, length, device="meta", dtype=dtype))
        mark(self.weight, Shard(1, group.rank(), group.size(), embedding_dim))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """`[batch, seq]` → `[batch, seq, hidden]`, equal on all ranks."""
        check_group_serves(type(self).__name__, self.group, ids.device)
        return gather_from_region(F.embedding(ids, self.weight, self.padding_idx), self.group, -1)


class SharedKeyHook:
    """Lets the part of a projection's output that all heads use enter the ranks' own heads (DeepSeek's MLA).

    In multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1) a replicated projection makes a latent
    vector, which enters a column-parallel layer, and a rotary key, which every head uses as it is: its
    gradient is a sum over the ranks' heads.
    """

    def __init__(self, group: dist.ProcessGroup, rotary_dim: int) -> None:
        self.group, self.rotary_dim = group, rotary_dim

    def __call__(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        """Return the output `[…, latent + rotary]`, f standing before the rotary part."""
        latent, rotary = output.split([output.size(-1) - self.rotary_dim, self.rotary_dim], -1)
        return torch.cat([latent, copy_to_region(rotary, self.group)], -1)


class ExpertsHooks:
    """f at the entry and g at the exit of a module whose experts' matrices are divided over the group.

    Its inputs are, as in transformers, the tokens `[tokens, hidden]`, each one's experts, and their weights:
    every rank computes its part of every expert, so that both tokens and weights get partial gradients.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def attach(self, experts: nn.Module) -> None:
        """Set the hooks."""
        experts.register_forward_pre_hook(self._enter)
        experts.register_forward_hook(self._leave)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            copy_to_region(arg, self.group)
            if isinstance(arg, torch.Tensor) and arg.is_floating_point()
            else arg
            for arg in args
        )

    def _leave(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return reduce_from_region(output, self.group)


class AttentionStream:
    """Lets an attention module draw its dropout from the rank's own random stream, for its heads are its own.

    transformers calls dropout inside a function of its own, so that hooks mark where the divided region
    begins (the attention module) and ends (the row-parallel layer, after which dropout is the same on all
    ranks).
    """

    def __init__(self, streams: RandomStreams) -> None:
        self.streams = streams
        self.within: AbstractContextManager[None] | None = None

    def attach(self, attention: nn.Module, last: nn.Module) -> None:
        """Set the hooks: `last` is the row-parallel layer in `attention`."""
        attention.register_forward_pre_hook(self._enter)
        last.register_forward_pre_hook(self._leave)
        attention.register_forward_hook(self._leave, always_call=True)  # also when a forward pass fails

    def _enter(self, module: nn.Module, *args: Any) -> None:
        if module.training and attention_dropout(module) > 0:
            self.within = self.streams.sharded()
            self.within.__enter__()

    def _leave(self, module: nn.Module, *args: Any) -> None:
        if self.within is not None:
            within, self.within = self.within, None
            within.__exit__(None, None, None)


def attention_dropout(module: nn.Module) -> float:
    """Return the probability with which a transformers attention module drops attention weights."""
    for name in ("attention_dropout", "attn_dropout", "dropout"):
        value = getattr(module, name, None)
        value = value.p if isinstance(value, nn.Dropout) else value
        if isinstance(value, float):
            return value
    return 0.0


class LocalConfig:
    """A model's config as one attention module sees it: a few numbers are this rank's, all else is shared."""

    def __init__(self, config: Any, **own: Any) -> None:
        self.__dict__.update(own, _shared=config)

    def __getattr__(self, name: str) -> Any:
        """Read what is not this rank's own from the shared config."""
        if name == "_shared":  # asked for by copy and pickle before there is a state
            raise AttributeError(name)
        return getattr(self._shared, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Write to the shared config, unless the number is this rank's own."""
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self._shared, name, value)


class VocabParallelCausalLoss:
    """The loss function of transformers' causal language models, for logits that stay divided over the ranks.

    It takes the arguments of `transformers.loss.loss_utils.ForCausalLMLoss`.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor | None,
        vocab_size: int,
        num_items_in_batch: torch.Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: torch.Tensor | None = None,
        **ignored_by_transformers: Any,
    ) -> torch.Tensor:
        """Return the loss of `[batch, seq, vocab/tp]` logits, equal on all ranks; each predicts the next."""
        if shift_labels is None:
            assert labels is not None
            shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        loss = vocab_parallel_cross_entropy(
            logits.float().flatten(0, -2),
            shift_labels.flatten().to(logits.device),
            self.group,
            ignore_index=ignore_index,
            reduction="mean" if num_items_in_batch is None else "sum",
            vocab_size=vocab_size,
        )
        return loss if num_items_in_batch is None else loss / num_items_in_batch
