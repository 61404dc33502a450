"""Dividing a Hugging Face model over the tensor-parallel axis, in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.comm import ProcessMesh, check_group_device
from npu_plugins.tensor_parallel.conversion import DIVIDES_HEADS, IN_PLACE, OWNERS, Conversion
from npu_plugins.tensor_parallel.deferred import WeightGradients
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.heads import Heads
from npu_plugins.tensor_parallel.linear import RowParallelLinear
from npu_plugins.tensor_parallel.plans import Plan, given_plan, plan_of
from npu_plugins.tensor_parallel.random import RandomStreams
from npu_plugins.tensor_parallel.replacements import AttentionStream, LocalConfig, VocabParallelCausalLoss
from npu_plugins.tensor_parallel.shard import Shard, shard_of

Model = TypeVar("Model", bound=nn.Module)


def shard_model(
    model: Model,
    mesh: ProcessMesh,
    *,
    plan: Mapping[str, str] | None = None,
    gather_logits: bool = True,
    weight_gradients: WeightGradients | None = None,
) -> Model:
    """Divide a Hugging Face model over the mesh's ``tp`` axis, in place (Megatron-LM, arXiv 1909.08053 §3).

    Every rank of a tensor-parallel group calls this with the same model and keeps its part of it. The model's
    linear layers and embeddings become layers of this package under the same names; its own forward pass,
    loss, `generate` and activation checkpointing go on as before, with inputs `[batch, seq]` that must be the
    same on all ranks of the group (`npu_plugins.comm.broadcast_batch`). Dropout of attention weights draws
    other numbers on every rank, all other dropout the same. A model on the meta device is divided
    there.

    By default every rank gets the whole logits `[batch, seq, vocab]`, so that whatever is done with them
    stays right: any loss, `generate`, metrics. With `gather_logits=False` they stay divided, `[batch, seq,
    vocab/tp]`, which saves their memory and a gather; the model's own loss is then
    `vocab_parallel_cross_entropy`.

    Args:
        model: a transformers model; its plan is `config.base_model_tp_plan`, or ours for its model_type.
        mesh: gives the group. With one rank on the axis the model stays as it is.
        plan: styles by pattern of module names, instead of the model's plan; each must name something.
        gather_logits: whether the output layer's output is gathered.
        weight_gradients: where the layers leave their weight gradients when those are to run later.

    Returns:
        The same model.

    Raises:
        TensorParallelError: there is no plan, it names what is not there, a style is unknown, heads or
            sizes do not divide, the mesh asks for sequence parallelism, or the ranks hold different weights.
            The model is then as it was.
        CommError: the group cannot reach the model's device.
    """
    group = mesh.group("tp")
    if group is None:
        return model
    if mesh.config.sequence_parallel:
        raise TensorParallelError(
            f"sequence_parallel: the attention modules of {type(model).__name__} take the length of the "
            "sequence from their input, which must be the whole one; make the mesh with "
            "sequence_parallel=False"
        )
    chosen = plan_of(model) if plan is None else given_plan(model, plan)
    styles = chosen.matches(model)
    device = next(model.parameters()).device
    if device.type != "meta":
        check_group_device(group, device, f"the tp group of {type(model).__name__}")
        check_same_weights(model, group)
    job = _Job(model, group, chosen, styles, gather_logits, weight_gradients)
    job.check_attention()  # everything that can be refused is refused before anything is changed
    job.replace(dry=True)
    job.check_ties()
    job.replace(dry=False)
    job.tell_modules(RandomStreams(group, mesh.device))
    return model


def shards_of(model: nn.Module, ranks: int) -> dict[str, Shard]:
    """Return how `shard_model` would divide each parameter that it divides, as checkpoints store it.

    Args:
        model: a transformers model on the meta device; it is divided for the first rank, and of no use then.
        ranks: of the tensor-parallel group. None are needed.

    Returns:
        By name the first rank's shard; what stays whole has none. Dims are those of transformers' weights,
        also where a layer of ours keeps the weight transposed (Conv1D).

    Raises:
        TensorParallelError: as `shard_model`.
    """
    if ranks == 1:
        return {}
    group = dist.ProcessGroup(0, ranks)  # knows rank and size; nothing is communicated to make layers on meta
    chosen = plan_of(model)
    job = _Job(model, group, chosen, chosen.matches(model), True, None)
    job.check_attention()
    job.replace(dry=True)
    job.check_ties()
    job.replace(dry=False)
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shard = shard_of(parameter)
        if shard is not None:
            flipped = getattr(parameter, "stored_transposed", False)
            found[name] = replace(shard, dim=1 - shard.dim) if flipped else shard
    return found


class _Job:
    """One call of shard_model."""

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        plan: Plan,
        styles: Mapping[str, str],
        gather_logits: bool,
        weight_gradients: WeightGradients | None,
    ) -> None:
        self.model, self.group, self.plan, self.styles = model, group, plan, styles
        self.weight_gradients = weight_gradients
        self.modules = dict(model.named_modules())
        self.config = _text_config(model)
        self.output = None if gather_logits else self._output_layer()
        self.attention = self._divided_attention()
        self.local = plan.local_attributes(model)

    def _output_layer(self) -> str:
        output = self.model.get_output_embeddings()
        names = [name for name, module in self.modules.items() if module is output and name in self.styles]
        loss = getattr(self.model, "loss_type", None)
        if not names or loss not in (None, "ForCausalLM"):
            raise TensorParallelError(
                f"gather_logits=False: {type(self.model).__name__} (loss {loss}) has no output layer in "
                "its plan whose loss could be taken of divided logits; leave gather_logits out"
            )
        return names[0]

    def _divided_attention(self) -> dict[str, Heads]:
        """The heads of each attention module that computes some of its heads on this rank, by its name.

        One whose projections are gathered computes all of them, and stays as it is.
        """
        found = {}
        for name, style in self.styles.items():
            parent = name.rpartition(".")[0]
            heads = Heads.of(self.modules.get(parent), self.config, self.group.size())
            if heads is not None and style in DIVIDES_HEADS:
                found[parent] = heads
        return found

    def check_attention(self) -> None:
        """Refuse heads that do not divide, naming the first projection of them."""
        for name, style in self.styles.items():
            parent = name.rpartition(".")[0]
            if style in DIVIDES_HEADS and parent in self.attention:
                self.attention[parent].check(name, self.modules[parent])
            if style == "merged_qkv" and parent not in self.local:
                raise TensorParallelError(
                    f"{name}: style {style!r} wants a plan of ours for {type(self.model).__name__}, which "
                    "says what its attention module must be told; use 'colwise_gather_output' and, for the "
                    "layer after it, 'rowwise_split_input'"
                )

    def replace(self, dry: bool) -> None:
        """Convert every module of the plan; put the results in place unless `dry`."""
        uses: dict[int, int] = {}
        for _, parameter in self.model.named_parameters(remove_duplicate=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        conversion = Conversion(
            self.group,
            self.config,
            self.output,
            self.weight_gradients,
            frozenset(key for key, count in uses.items() if count > 1),
            dry,
        )
        for name, style in self.styles.items():
            if name not in self.modules:
                self._replace_parameter(conversion, name, style)
                continue
            heads = self.attention.get(name.rpartition(".")[0])
            made = conversion.convert(name, self.modules[name], style, heads)
            if not dry and made is not self.modules[name]:
                parent, _, own = name.rpartition(".")
                setattr(self.modules[parent], own, made)
                self.modules[name] = made

    def _replace_parameter(self, conversion: Conversion, name: str, style: str) -> None:
        parent, _, own = name.rpartition(".")
        owner = self.styles.get(parent)
        if owner not in OWNERS:
            raise TensorParallelError(
                f"{name}: style {style!r} of a single parameter (of shape "
                f"{list(self.model.get_parameter(name).shape)}) wants {parent} to have one of the styles "
                f"{', '.join(OWNERS)}; name the module itself instead"
            )
        made = conversion.convert_parameter(name, self.model.get_parameter(name), style)
        if not conversion.dry:
            setattr(self.modules[parent], own, made)

    def check_ties(self) -> None:
        """Refuse a tied weight of which the plan divides one use only."""
        uses: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            uses.setdefault(id(parameter), []).append(name)
        for names in uses.values():
            divided = [n for n in names if self._divides(n)]
            if divided and len(divided) < len(names):
                whole = next(n for n in names if n not in divided)
                raise TensorParallelError(
                    f"{divided[0]} is tied to {whole}, but {self.plan.source} divides only the first of "
                    "them; name both, along the vocabulary, or none"
                )

    def _divides(self, parameter: str) -> bool:
        return self.styles.get(parameter.rpartition(".")[0], "replicate") not in IN_PLACE

    def tell_modules(self, streams: RandomStreams) -> None:
        """Set what the modules' own forward passes and the loss must know."""
        self.model.random_streams = streams
        for name, heads in self.attention.items():
            heads.tell(self.modules[name])
            rows = [m for m in self.modules[name].children() if isinstance(m, RowParallelLinear)]
            if len(rows) == 1:
                AttentionStream(streams).attach(self.modules[name], rows[0])
            for attribute, kind in self.local.get(name, {}).items():
                _set_local(self.modules[name], attribute, kind, heads)
        if self.output is not None:
            self.model.loss_function = VocabParallelCausalLoss(self.group)


def _set_local(module: nn.Module, attribute: str, kind: str, heads: Heads) -> None:
    if attribute.startswith("config."):
        name = attribute.removeprefix("config.")
        local = heads.local(kind, getattr(module.config, name))
        module.config = LocalConfig(module.config, **{name: local})
    else:
        setattr(module, attribute, heads.local(kind, getattr(module, attribute)))


def _text_config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    return config.get_text_config() if config is not None else None


def check_same_weights(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Refuse ranks that hold different models: their parts would not belong together.

    Raises:
        TensorParallelError: naming the first parameter that differs, and the ranks.
    """
    check_same_tensors(dict(model.named_parameters()), type(model).__name__, group)


@torch.no_grad()
def check_same_tensors(tensors: Mapping[str, torch.Tensor], owner: str, group: dist.ProcessGroup) -> None:
    """Refuse ranks of a group that hold different tensors, which are compared by their sums.

    Args:
        tensors: by name, the same names on all ranks, on a device that the group serves.
        owner: what they are of, for the error.
        group: whose ranks are compared.

    Raises:
        TensorParallelError: naming the first tensor that differs, and the ranks.
    """
    names = list(tensors)
    sums = torch.stack([tensors[name].sum(dtype=torch.float32) for name in names])
    everyone = [torch.empty_like(sums) for _ in range(group.size())]
    dist.all_gather(everyone, sums, group=group)
    bits = torch.stack(everyone).cpu().view(torch.int32)  # nan equals nan
    different = (bits != bits[0]).any(0).nonzero().flatten().tolist()
    if different:
        ranks = (bits[:, different[0]] != bits[0, different[0]]).nonzero().flatten().tolist()
        raise TensorParallelError(
            f"{names[different[0]]} of {owner} differs between rank 0 and ranks "
            f"{', '.join(map(str, ranks))} of the ranks that divide it ({len(different)} of {len(names)} "
            "parameters differ); seed all ranks alike before the model is built, or load the same "
            "checkpoint on all of them"
        )
