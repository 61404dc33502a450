"""Sharded parameters say what they hold wherever torch puts new ones in their place."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn

from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    WeightGradients,
    shard_of,
)
from tests.harness.pool import World
from tests.tensor_parallel.comparing import device, group, normal


def model(where: str | torch.device) -> nn.ModuleList:
    """One layer of every kind that shards parameters, the output layer tied to the embedding."""
    options = {"group": group(), "device": where, "seed": 0}
    made = nn.ModuleList(
        [
            VocabParallelEmbedding(13, 8, **options),
            ColumnParallelLinear(8, 12, **options),
            RowParallelLinear(12, 8, **options),
            MergedColumnParallelLinear(8, [8, 4], **options),
            QKVParallelLinear(8, 2, 4, 1, **options),
            ColumnParallelLinear(8, 13, bias=False, divisible_by=1, **options),
        ]
    )
    made[-1].weight = made[0].weight
    return made


def marks(module: nn.Module) -> list[tuple]:
    """What every parameter says."""
    return [
        (name, shard_of(p), getattr(p, "tensor_model_parallel", False), getattr(p, "partition_dim", None))
        for name, p in module.named_parameters(remove_duplicate=False)  # to_empty unties
    ]


def test_marks_stay(tp_ranks: World) -> None:
    def body() -> None:
        own = model("cpu")
        expected = marks(own)
        assert sum(mark[2] for mark in expected) == 9  # not: the row layer's bias, keys and values
        assert marks(copy.deepcopy(own)) == expected
        assert marks(model("meta").to_empty(device=device())) == expected
        assert marks(model("cpu").to(device(), torch.bfloat16)) == expected
        for assign, where in itertools.product((False, True), ("cpu", "meta")):
            other = model(where)
            if assign or where == "cpu":
                state = {name: tensor.clone() for name, tensor in own.state_dict().items()}
                other.load_state_dict(state, assign=assign)
                assert marks(other) == expected, (assign, where)

    tp_ranks.run(body)


def test_a_copy_computes_the_same_and_is_its_own(cpu_ranks: World) -> None:
    def body() -> None:
        store = WeightGradients()
        own = ColumnParallelLinear(8, 12, group=group(), seed=0, weight_gradients=store)
        other = copy.deepcopy(own)
        assert torch.equal(own(normal(0, 3, 8)), other(normal(0, 3, 8)))
        assert other.group is own.group and other.weight_gradients is store
        with torch.no_grad():
            other.weight.zero_()
        assert own.weight.any()

    cpu_ranks.run(body)
