"""What the linear layers refuse, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from npu_plugins.tensor_parallel import ColumnParallelLinear, RowParallelLinear, TensorParallelError
from tests.harness.pool import World
from tests.tensor_parallel.comparing import group, normal

IN, OUT = 12, 20


def test_bad_sizes_and_groups_are_refused(cpu_ranks: World) -> None:
    def body() -> list[str]:
        size, said = dist.get_world_size(), []
        cases = [
            lambda: ColumnParallelLinear(IN, 21, size),
            lambda: RowParallelLinear(21, OUT, size),
            lambda: ColumnParallelLinear(IN, OUT, size + 1),
            lambda: ColumnParallelLinear(IN, OUT, size + 1, group=group()),
            lambda: ColumnParallelLinear(IN, OUT, 0),
            lambda: ColumnParallelLinear(IN, OUT, size, gather_output=True, skip_bias_add=True),
            lambda: ColumnParallelLinear(IN, OUT, size, sequence_parallel=True, reduce_input_gradient=False),
            lambda: ColumnParallelLinear(IN, OUT, size, seed=0)(normal(0, 2, IN + 1)),
            lambda: RowParallelLinear(IN, OUT, size, seed=0)(normal(0, 2, IN)),
            lambda: RowParallelLinear(IN, OUT, size, seed=0, sequence_parallel=True)(
                normal(0, 7, 1, IN // size)
            ),
        ]
        for case in cases:
            with pytest.raises(TensorParallelError) as caught:
                case()
            said.append(str(caught.value))
        return said

    size = cpu_ranks.size
    said = cpu_ranks.run(body)[0]
    words = [
        ["ColumnParallelLinear(12, 21)", f"out_features 21 cannot be divided over {size}"],
        ["RowParallelLinear(21, 20)", f"in_features 21 cannot be divided over {size}"],
        [f"tp_size is {size + 1}", f"default process group has {size} ranks", "mesh.group('tp')"],
        [f"tp_size is {size + 1}", f"the group passed has {size} ranks"],
        ["tp_size is 0", "1 or more"],
        ["gather_output", "skip_bias_add"],
        ["sequence_parallel", "gather_sequence"],
        ["(2, 13)", "12 long"],
        ["(2, 12)", f"{IN // size} long"],
        [f"divided over {size} ranks along dim 0", "7 is no multiple"],
    ]
    for sentence, expected_words in zip(said, words, strict=True):
        assert all(word in sentence for word in expected_words), sentence


@pytest.mark.npu
def test_a_group_of_another_device_is_refused(rank_pool: Any) -> None:
    def body() -> str:
        layer = ColumnParallelLinear(IN, OUT, group=group(), seed=0)
        with pytest.raises(TensorParallelError) as caught:
            layer(normal(0, 2, IN))
        return str(caught.value)

    with rank_pool.world(2, "hccl") as world:
        for sentence in world.run(body):
            assert "tensors are on cpu" in sentence and "npu:hccl" in sentence and "move" in sentence


def test_a_size_without_any_process_group_is_refused() -> None:
    with pytest.raises(TensorParallelError, match="no process group; start 2 ranks"):
        ColumnParallelLinear(IN, OUT, 2)
