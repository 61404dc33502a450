"""The styles of a tensor-parallel plan: what a module of each becomes on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.tensor_parallel.collectives import reduce_from_region, sum_gradients
from npu_plugins.tensor_parallel.deferred import WeightGradients
from npu_plugins.tensor_parallel.embedding import VocabParallelEmbedding
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.groups import divide
from npu_plugins.tensor_parallel.heads import Heads
from npu_plugins.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from npu_plugins.tensor_parallel.merged import SharedColumnParallelLinear
from npu_plugins.tensor_parallel.replacements import (
    ExpertsHooks,
    HiddenParallelEmbedding,
    ScaledVocabParallelEmbedding,
    SharedKeyHook,
    StackedColumnParallelLinear,
)
from npu_plugins.tensor_parallel.shard import Shard, mark, shard_of


class Dense(NamedTuple):
    """A full linear layer, whichever way round its weight lies."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    in_features: int
    out_features: int
    transposed: bool
    """Whether the weight is `[in, out]`, as in transformers' Conv1D."""


@dataclass
class Conversion:
    """Divides the modules of one model for one rank."""

    group: dist.ProcessGroup
    config: Any
    divided_output: str | None = None
    """The output layer, if its output is not to be gathered."""
    weight_gradients: WeightGradients | None = None
    shared: frozenset[int] = frozenset()
    """Ids of the parameters that several modules have (tied weights)."""
    dry: bool = False
    """Whether to make parameters on the meta device only, to see whether everything can be divided."""
    cut_already: dict[int, tuple[str, Shard, nn.Parameter]] = field(default_factory=dict)

    def convert(self, name: str, module: nn.Module, style: str, heads: Heads | None) -> nn.Module:
        """Return what `module` becomes on this rank: a new module, or itself with a hook.

        Raises:
            TensorParallelError: the style is unknown, or cannot divide this module; with the module's name.
        """
        if style not in STYLES:
            raise TensorParallelError(
                f"{name}: style {style!r} is none that shard_model divides modules by "
                f"({', '.join(STYLES)}); leave the module out of plan=… to keep it whole, or use another "
                "style"
            )
        return STYLES[style](self, Target(name, module, style, heads))

    def convert_parameter(self, name: str, parameter: nn.Parameter, style: str) -> nn.Parameter:
        """Return what a single parameter, such as the stacked matrices of all experts, becomes on this rank.

        Raises:
            TensorParallelError: the style is unknown for a parameter, or cannot divide this one.
        """
        if style not in PARAMETER_STYLES:
            raise TensorParallelError(
                f"{name}: style {style!r} is none that shard_model divides single parameters by "
                f"({', '.join(PARAMETER_STYLES)}); leave it out of plan=… with its module, to keep both whole"
            )
        from_end, count = PARAMETER_STYLES[style]
        dim = max(0, parameter.dim() - from_end)
        length, size = parameter.size(dim), self.group.size()
        parts = (length // count,) * count if count > 1 else ()
        divide(name, f"a part of its dim {dim}, of length", length // count, size)
        return self.cut(name, parameter, Shard(dim, self.group.rank(), size, length, parts))

    def cut(self, name: str, parameter: nn.Parameter, shard: Shard, transposed: bool = False) -> nn.Parameter:
        """Return this rank's part of a full parameter; a tied one is cut once and stays tied."""
        if id(parameter) in self.cut_already:
            other, cut_by, made = self.cut_already[id(parameter)]
            if cut_by != shard:
                raise TensorParallelError(
                    f"{name} is tied to {other}, but the plan divides one along dim {cut_by.dim} and the "
                    f"other along dim {shard.dim}; give both a style along the vocabulary"
                )
            return made
        full = parameter.detach()
        full = full.t() if transposed else full
        full = full.to("meta") if self.dry else full
        made = nn.Parameter(_part(full, shard), requires_grad=parameter.requires_grad)
        mark(made, shard)
        if transposed:
            made.stored_transposed = True
        if id(parameter) in self.shared:
            self.cut_already[id(parameter)] = name, shard, made
        return made

    def fill(
        self, layer: nn.Module, name: str, full: Mapping[str, nn.Parameter | None], transposed: bool
    ) -> None:
        """Give `layer`, made on the meta device, this rank's parts of the full parameters."""
        for key, parameter in full.items():
            if parameter is None:
                continue
            shard = shard_of(getattr(layer, key))
            if shard is not None:
                flip = transposed and parameter.dim() == 2
                parameter = self.cut(f"{name}.{key}", parameter, shard, flip)
            setattr(layer, key, parameter)  # a replicated one stays the very same


class Target(NamedTuple):
    """A module to convert."""

    name: str
    module: nn.Module
    style: str
    heads: Heads | None

    def dense(self) -> Dense:
        """Return the module as a linear layer.

        Raises:
            TensorParallelError: it is none.
        """
        from transformers.pytorch_utils import Conv1D

        module = self.module
        if type(module) is nn.Linear:
            return Dense(module.weight, module.bias, module.in_features, module.out_features, False)
        if type(module) is Conv1D:
            return Dense(module.weight, module.bias, module.nx, module.nf, True)
        raise self.refused("torch.nn.Linear and transformers' Conv1D")

    def refused(self, served: str) -> TensorParallelError:
        """Return the refusal of a module of another kind."""
        return TensorParallelError(
            f"{self.name} is a {type(self.module).__name__}, which style {self.style!r} cannot divide (it "
            f"divides {served}); leave it out of plan=… to keep it whole"
        )


def _part(full: torch.Tensor, shard: Shard) -> torch.Tensor:
    if full.is_meta:
        shape = list(full.shape)
        shape[shard.dim] = shard.local_size
        return torch.empty(shape, dtype=full.dtype, device="meta")
    return shard.take(full)


def _options(conversion: Conversion, dense: Dense) -> dict[str, Any]:
    return {
        "group": conversion.group,
        "bias": dense.bias is not None,
        "device": "meta",
        "dtype": dense.weight.dtype,
        "weight_gradients": conversion.weight_gradients,
    }


def _filled(conversion: Conversion, target: Target, layer: nn.Module, dense: Dense) -> nn.Module:
    full = {"weight": dense.weight, "bias": dense.bias}
    conversion.fill(layer, target.name, full, dense.transposed)
    return layer.train(target.module.training)


def _colwise(conversion: Conversion, target: Target) -> nn.Module:
    dense = target.dense()
    options = _options(conversion, dense)
    units = target.heads.shared_units(target.name, dense.out_features) if target.heads else None
    layer: nn.Module
    if units is not None:
        if dense.transposed:
            raise target.refused("torch.nn.Linear where there are fewer key-value heads than ranks")
        layer = SharedColumnParallelLinear(dense.in_features, dense.out_features, units, **options)
    else:
        divide(target.name, "out_features", dense.out_features, conversion.group.size())
        layer = ColumnParallelLinear(dense.in_features, dense.out_features, **options)
    return _filled(conversion, target, layer, dense)


def _colwise_gather(conversion: Conversion, target: Target) -> nn.Module:
    dense = target.dense()
    layer = ColumnParallelLinear(
        dense.in_features,
        dense.out_features,
        divisible_by=1,
        gather_output=target.name != conversion.divided_output,
        **_options(conversion, dense),
    )
    return _filled(conversion, target, layer, dense)


def _merged(conversion: Conversion, target: Target, parts: list[int]) -> nn.Module:
    dense = target.dense()
    if sum(parts) != dense.out_features:
        raise TensorParallelError(
            f"{target.name}: {dense.out_features} output features are not the parts {parts} that style "
            f"{target.style!r} finds in the config; is it of the same model?"
        )
    for part in parts:
        divide(target.name, "a part of out_features, of length", part, conversion.group.size())
    layer = StackedColumnParallelLinear(dense.in_features, parts, **_options(conversion, dense))
    return _filled(conversion, target, layer, dense)


def _merged_qkv(conversion: Conversion, target: Target) -> nn.Module:
    if target.heads is None:
        raise TensorParallelError(
            f"{target.name}: style {target.style!r} needs an attention module with head_dim around it"
        )
    return _merged(conversion, target, target.heads.merged_parts(target.name))


def _packed_colwise(conversion: Conversion, target: Target) -> nn.Module:
    half = target.dense().out_features // 2
    return _merged(conversion, target, [half, half])


def _rowwise(conversion: Conversion, target: Target, input_is_parallel: bool = True) -> nn.Module:
    if isinstance(target.module, nn.Embedding):  # older plans name the vocabulary's rows so
        return _embedding_rowwise(conversion, target)
    dense = target.dense()
    divide(target.name, "in_features", dense.in_features, conversion.group.size())
    layer = RowParallelLinear(
        dense.in_features,
        dense.out_features,
        input_is_parallel=input_is_parallel,
        **_options(conversion, dense),
    )
    return _filled(conversion, target, layer, dense)


def _rowwise_split_input(conversion: Conversion, target: Target) -> nn.Module:
    return _rowwise(conversion, target, input_is_parallel=False)


def _plain_embedding(target: Target) -> nn.Embedding:
    module = target.module
    if not isinstance(module, nn.Embedding):
        raise target.refused("torch.nn.Embedding")
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        raise TensorParallelError(
            f"{target.name}: max_norm, scale_grad_by_freq and sparse gradients of an embedding cannot be "
            f"divided over ranks; build it without them, or leave it out of plan=… to keep it whole"
        )
    return module


def _embedding_rowwise(conversion: Conversion, target: Target) -> nn.Module:
    module = _plain_embedding(target)
    sizes = (module.num_embeddings, module.embedding_dim)
    options: dict[str, Any] = {
        "group": conversion.group,
        "padding_idx": module.padding_idx,
        "device": "meta",
        "dtype": module.weight.dtype,
    }
    layer: VocabParallelEmbedding
    scale = getattr(module, "embed_scale", None)
    if type(module) is nn.Embedding:
        layer = VocabParallelEmbedding(*sizes, **options)
    elif isinstance(scale, torch.Tensor) and type(module).__name__.endswith("ScaledWordEmbedding"):
        layer = ScaledVocabParallelEmbedding(*sizes, embed_scale=scale, **options)
    else:
        raise target.refused("torch.nn.Embedding and the scaled ones of Gemma")
    conversion.fill(layer, target.name, {"weight": module.weight}, transposed=False)
    return layer.train(module.training)


def _embedding_colwise(conversion: Conversion, target: Target) -> nn.Module:
    module = _plain_embedding(target)
    if type(module) is not nn.Embedding:
        raise target.refused("torch.nn.Embedding itself")
    divide(target.name, "embedding_dim", module.embedding_dim, conversion.group.size())
    layer = HiddenParallelEmbedding(
        module.num_embeddings,
        module.embedding_dim,
        group=conversion.group,
        padding_idx=module.padding_idx,
        dtype=module.weight.dtype,
    )
    conversion.fill(layer, target.name, {"weight": module.weight}, transposed=False)
    return layer.train(module.training)


def _replicated_with_grad_allreduce(conversion: Conversion, target: Target) -> nn.Module:
    # On the gradient of each backward pass. transformers 5.24 sums the accumulated `.grad`, and with it what
    # earlier micro-batches left there once more (`ReplicatedWithGradAllReduce`).
    if not conversion.dry:
        trained = [p for p in target.module.parameters(recurse=False) if p.requires_grad]
        sum_gradients(trained, conversion.group)
    return target.module


def _mla_kv_a_proj(conversion: Conversion, target: Target) -> nn.Module:
    rotary_dim = getattr(conversion.config, "qk_rope_head_dim", None)
    if rotary_dim is None:
        raise TensorParallelError(
            f"{target.name}: style {target.style!r} needs qk_rope_head_dim in the config, which "
            f"{type(conversion.config).__name__} lacks"
        )
    if not conversion.dry:
        target.module.register_forward_hook(SharedKeyHook(conversion.group, rotary_dim))
    return target.module


def _all_reduce(conversion: Conversion, target: Target) -> nn.Module:
    group = conversion.group
    if not conversion.dry:
        target.module.register_forward_hook(lambda module, args, output: reduce_from_region(output, group))
    return target.module


def _moe_tp_experts(conversion: Conversion, target: Target) -> nn.Module:
    if not conversion.dry:
        ExpertsHooks(conversion.group).attach(target.module)
    return target.module


def _replicate(conversion: Conversion, target: Target) -> nn.Module:
    return target.module


STYLES: Mapping[str, Callable[[Conversion, Target], nn.Module]] = {
    "colwise": _colwise,
    "colwise_gather_output": _colwise_gather,
    "colwise_rep": _colwise_gather,
    "rowwise": _rowwise,
    "rowwise_split_input": _rowwise_split_input,
    "rowwise_rep": _rowwise_split_input,
    "packed_colwise": _packed_colwise,
    "merged_qkv": _merged_qkv,
    "embedding_rowwise": _embedding_rowwise,
    "embedding_colwise": _embedding_colwise,
    "replicated_with_grad_allreduce": _replicated_with_grad_allreduce,
    "mla_kv_a_proj": _mla_kv_a_proj,
    "all_reduce": _all_reduce,
    "moe_tp_experts": _moe_tp_experts,
    "local_params": _replicate,
    "replicate": _replicate,
}
"""Named as in transformers (`transformers.distributed.tensor_parallel`); `merged_qkv` is ours."""

IN_PLACE = frozenset(
    {
        "replicated_with_grad_allreduce",
        "mla_kv_a_proj",
        "all_reduce",
        "moe_tp_experts",
        "local_params",
        "replicate",
    }
)
"""Styles that leave the module where it is."""

DIVIDES_HEADS = ("colwise", "merged_qkv")
"""Styles that leave an attention module with this rank's heads only."""

OWNERS = ("moe_tp_experts", "local_params")
"""Styles of modules whose parameters have styles of their own and whose forward pass takes parts."""

PARAMETER_STYLES: Mapping[str, tuple[int, int]] = {
    "colwise": (2, 1),
    "rowwise": (1, 1),
    "packed_colwise": (2, 2),
    "packed_rowwise": (1, 2),
}
"""For a parameter `[…, out, in]`: the dim that is divided, counted from the end, and parts merged in it."""
