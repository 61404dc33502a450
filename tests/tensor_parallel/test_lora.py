"""Adapters on divided layers against y = W x + scaling · B A x in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RandomStreams,
    RowParallelLinear,
    SharedColumnParallelLinear,
    TensorParallelError,
    WeightGradients,
    gather_full,
    shard_of,
)
from npu_plugins.tensor_parallel.lora import NAME, Adapter, adapted_layers, insert_adapters, merged
from npu_plugins.tensor_parallel.replacements import StackedColumnParallelLinear
from tests.harness.pool import World
from tests.tensor_parallel.comparing import assert_close, device, group

INPUTS, OUTPUTS, RANK = 8, 24, 3


def divided_layer(kind: str) -> nn.Module:
    """Return a layer of INPUTS → OUTPUTS features, drawn alike whatever the ranks."""
    options: dict[str, Any] = {"group": group(), "device": device(), "seed": 5}
    if kind == "row":
        return RowParallelLinear(INPUTS, OUTPUTS, input_is_parallel=False, **options)
    if kind == "shared":
        return SharedColumnParallelLinear(INPUTS, OUTPUTS, units=dist.get_world_size() // 2, **options)
    if kind == "stacked":
        return StackedColumnParallelLinear(INPUTS, [8, 8, 8], **options)
    if kind == "gathered":  # padded to a multiple of the ranks, which 21 features are not
        return ColumnParallelLinear(INPUTS, OUTPUTS - 3, gather_output=True, divisible_by=1, **options)
    return ColumnParallelLinear(INPUTS, OUTPUTS, **options)


def own_part(kind: str, full: torch.Tensor, layer: Any) -> torch.Tensor:
    """Return what the layer's output on this rank is of the whole one."""
    if kind == "shared":
        return full[..., slice(*layer.rows)]
    if kind in ("stacked", "column"):
        parts = full.split(8, -1) if kind == "stacked" else [full]
        return torch.cat([part.chunk(dist.get_world_size(), -1)[dist.get_rank()] for part in parts], -1)
    return full


def drawn(outputs: int) -> Adapter:
    """Return an adapter that does something, on this rank's device."""
    torch.manual_seed(1)
    down, up, bias = torch.randn(RANK, INPUTS), torch.randn(outputs, RANK), torch.randn(outputs)
    return Adapter(down.to(device()), up.to(device()), scaling=0.5, bias=bias.to(device()))


@pytest.mark.parametrize("kind", ["column", "gathered", "stacked", "shared", "row"])
def test_output_and_gradients(tp_ranks: World, kind: str) -> None:
    def body() -> None:
        layer = divided_layer(kind)
        adapter = drawn(layer.out_features)
        weight, bias = (gather_full(each, shard_of(each), group()) for each in (layer.weight, layer.bias))
        model = nn.ModuleDict({"layer": layer}).requires_grad_(False)
        insert_adapters(model, {"layer": adapter}, group())
        torch.manual_seed(2)
        inputs = torch.randn(4, 2, INPUTS)
        x = inputs.to(device()).requires_grad_()
        values = (adapter.down, adapter.up, torch.as_tensor(adapter.bias), x.detach())
        whole = [each.clone().requires_grad_() for each in values]
        down, up, up_bias, x_whole = whole
        wanted = x_whole @ weight.t() + bias + 0.5 * (x_whole @ down.t() @ up.t() + up_bias)
        y = layer(x)
        expected = own_part(kind, wanted, layer)
        assert_close("output", y, expected, bound=1e-5)
        seed = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(3)).to(device())
        y.backward(own_part(kind, seed, layer))
        counted = 2 if kind == "shared" else 1  # two ranks compute each unit
        (wanted * seed * counted).sum().backward()
        assert_close("input", x.grad, x_whole.grad, bound=1e-5)
        made = (layer.lora_A[NAME].weight, layer.lora_B[NAME].weight, layer.lora_B[NAME].bias)
        for name, own, full in zip(("A", "B", "bias"), made, whole[:3], strict=True):
            assert_close(name, gather_full(own.grad, shard_of(own), group()), full.grad, bound=1e-5)
        assert layer.weight.grad is None

    tp_ranks.run(body)


@pytest.mark.parametrize("kind", ["column", "gathered", "stacked", "shared", "row"])
def test_merging_changes_weights_as_the_adapter_changes_outputs(tp_ranks: World, kind: str) -> None:
    def body() -> None:
        layer = divided_layer(kind)
        model = nn.ModuleDict({"layer": layer})
        names = [name for name, _ in model.named_parameters()]
        insert_adapters(model, {"layer": drawn(layer.out_features)}, group())
        x = torch.randn(4, 2, INPUTS, generator=torch.Generator().manual_seed(2)).to(device())
        wanted, before = layer(x), layer.weight.clone()
        with merged(model):
            assert [name for name, _ in model.named_parameters()] == names
            assert_close("output", layer(x), wanted, bound=1e-5)
        assert torch.equal(layer.weight, before)
        assert torch.equal(layer(x), wanted)
        assert [name for name, _ in adapted_layers(model)] == ["layer"]

    tp_ranks.run(body)


def test_dropout_is_one_mask_for_whole_inputs_and_another_on_each_rank_for_parts(tp_ranks: World) -> None:
    def body() -> tuple[list[float], list[float]]:
        streams = RandomStreams(group(), device())
        streams.seed(3)
        masks = []
        for layer in (
            divided_layer("column"),
            RowParallelLinear(INPUTS, OUTPUTS, group=group(), device=device(), seed=1),
        ):
            adapter = drawn(OUTPUTS)
            insert_adapters(
                nn.ModuleDict({"layer": layer}),
                {"layer": Adapter(adapter.down, adapter.up, 1.0, 0.5)},
                group(),
                streams,
            )
            with streams.sharded():  # as within attention, whose own dropout differs on each rank
                masks.append(layer.lora_dropout[NAME](torch.ones(500, device=device())).tolist())
        streams.check()
        return masks[0], masks[1]

    found = tp_ranks.run(body)
    assert len({tuple(whole) for whole, _ in found}) == 1
    assert len({tuple(part) for _, part in found}) == tp_ranks.size


@pytest.mark.parametrize("kind", ["column", "row"])
def test_frozen_layers_keep_no_inputs_and_leave_no_work(tp_ranks: World, kind: str) -> None:
    def body() -> None:
        layer, store = divided_layer(kind), WeightGradients()
        x = torch.randn(4, 2, INPUTS).to(device()).requires_grad_()
        kept: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            y = layer.requires_grad_(False)(x)
        assert [tuple(each.shape) for each in kept] == [tuple(layer.weight.shape)]
        layer.weight_gradients = store
        layer.bias.requires_grad_()
        with store.at(0, 0):
            layer(x).sum().backward()
        store.run(0, 0)
        assert layer.weight.grad is None
        assert_close("bias", layer.bias.grad, torch.full_like(layer.bias, 8.0))
        y.sum().backward()
        assert x.grad is not None

    tp_ranks.run(body)


class TestRefusals:
    def test_a_layer_that_is_not_linear(self) -> None:
        model = nn.ModuleDict({"words": nn.Embedding(4, INPUTS)})
        with pytest.raises(TensorParallelError, match=r"words is a Embedding, but adapters are for linear"):
            insert_adapters(model, {"words": Adapter(torch.zeros(1, 4), torch.zeros(INPUTS, 1), 1.0)})

    def test_an_adapter_of_another_model_leaves_the_model_as_it_was(self) -> None:
        model = nn.ModuleDict({"one": nn.Linear(INPUTS, 2), "two": nn.Linear(INPUTS, 2)})
        fits, wrong = (Adapter(torch.zeros(1, INPUTS), torch.zeros(out, 1), 1.0) for out in (2, 3))
        with pytest.raises(TensorParallelError, match=r"two makes 2 features of 8, .*\[1, 8\] and \[3, 1\]"):
            insert_adapters(model, {"one": fits, "two": wrong})
        assert not list(adapted_layers(model))

    def test_a_layer_with_several_outputs(self) -> None:
        model = nn.ModuleDict({"qkv": MergedColumnParallelLinear(INPUTS, [4, 4])})
        with pytest.raises(TensorParallelError, match="qkv is a MergedColumnParallelLinear with"):
            insert_adapters(model, {"qkv": Adapter(torch.zeros(1, INPUTS), torch.zeros(8, 1), 1.0)})

    def test_merging_a_bias_into_a_layer_without(self) -> None:
        model = nn.ModuleDict({"one": nn.Linear(INPUTS, 2, bias=False)})
        adapter = Adapter(torch.zeros(1, INPUTS), torch.zeros(2, 1), 1.0, bias=torch.zeros(2))
        insert_adapters(model, {"one": adapter})
        with pytest.raises(TensorParallelError, match="one has no bias"), merged(model):
            pass
