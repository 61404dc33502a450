"""broadcast_batch gives every rank the first one's batch, bit for bit; check_same_batch says what differs."""

from __future__ import annotations

import collections
import enum
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import CommError, Coordinate, ProcessMesh, broadcast_batch, check_same_batch
from npu_plugins.comm.structure import as_bytes, first_difference, put_together, take_apart
from tests.harness import World
from tests.harness.fixtures import on_ranks

DTYPES = [
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
]
PLAIN_VALUES: list[Any] = [None, True, 3, -0.0, float("nan"), 2j, "text", b"bytes", [], {}, ()]


class Colour(enum.IntEnum):
    """An int by inheritance, but no plain value."""

    RED = 1


def rich_batch(seed: int) -> dict[Any, Any]:
    """Every container, dtype and plain value; strided, empty, scalar and gradient-carrying tensors."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(0, 2, (3, 5), generator=generator).to(dtype) for dtype in DTYPES]
    bits = torch.randint(-(2**31), 2**31 - 1, (64,), generator=generator, dtype=torch.int32)
    return {
        "tensors": tensors,
        "transposed": torch.rand(4, 6, generator=generator).t(),
        "expanded": torch.rand(1, 6, generator=generator).expand(4, 6),
        "any bits": bits.view(torch.float32),  # NaNs with payloads, denormal numbers, both zeros
        "scalar": torch.tensor(1.5 + seed),
        "empty": torch.empty(0, 7),
        "conjugate": torch.complex(torch.ones(3), torch.arange(3.0)).conj(),
        "carries a gradient": torch.rand(3, generator=generator).requires_grad_(),
        "named tuple": Coordinate(torch.arange(7) + seed, 7, "x"),
        3: ("deep", [{"er": (torch.ones(1, dtype=torch.int8),)}]),
        "mapping": collections.UserDict({"input_ids": torch.arange(5)}),
        "plain": PLAIN_VALUES,
    }


def check_broadcast() -> None:
    """On a rank: the rich batch of the group's first rank arrives, and so does a second one."""
    mesh = ProcessMesh.create(ParallelConfig(tp=2, dp=dist.get_world_size() // 2))
    for step in range(2):
        mine = rich_batch(10 * step + mesh.rank("dp")) if mesh.rank("tp") == 0 else None
        got = broadcast_batch(mine, mesh)
        expected = rich_batch(10 * step + mesh.rank("dp"))
        assert first_difference(got, expected) is None
        assert (
            type(got["mapping"]) is dict and type(got["named tuple"]) is Coordinate and type(got[3]) is tuple
        )
        flat = take_apart(got)[1]
        assert {tensor.device for tensor in flat} == {mesh.device}
        assert not any(tensor.requires_grad for tensor in flat)
        versions = [tensor._version for tensor in flat]
        flat[0].zero_()
        assert [tensor._version for tensor in flat[1:]] == versions[1:], "tensors do not share a buffer"
        check_same_batch(got, mesh)
        one = ProcessMesh.create(ParallelConfig(dp=dist.get_world_size()))
        assert first_difference(broadcast_batch(expected, one), expected) is None, "tp 1: one's own batch"


@on_ranks(4)
def test_broadcast_on_npus() -> None:
    check_broadcast()


@on_ranks(4, backend="gloo")
def test_broadcast_on_hosts() -> None:
    check_broadcast()


@on_ranks(4, backend="gloo")
def test_broadcast_reaches_all_stages_of_a_pipeline_if_asked() -> None:
    mesh = ProcessMesh.create(ParallelConfig(tp=2, pp=2))
    got = broadcast_batch({"x": torch.tensor(mesh.global_rank)}, mesh)
    assert got["x"].item() == mesh.ranks("tp")[0]
    got = broadcast_batch({"x": torch.tensor(mesh.global_rank)}, mesh, axis="model")
    assert got["x"].item() == 0


@on_ranks(2, backend="gloo")
def test_a_batch_that_cannot_be_sent_is_refused_by_every_rank() -> None:
    mesh = ProcessMesh.create(ParallelConfig(tp=2))
    sparse = torch.eye(3).to_sparse()
    for bad, sentence in [
        ({"a": [1, np.ones(3)]}, r"batch\['a'\]\[1\] is a numpy.ndarray; .* torch.from_numpy"),
        ({"a": {1}}, r"batch\['a'\] is a builtins.set"),
        ({"a": Colour.RED}, r"batch\['a'\] is a .*Colour; a batch is made of"),
        (
            (sparse,),
            r"batch\[0\] is no dense tensor with data \(torch.sparse_coo torch.float32 of shape \[3, 3\]\)",
        ),
        (
            {"a": torch.empty(3, device="meta")},
            r"batch\['a'\] is no dense tensor with data \(meta torch.float32",
        ),
    ]:
        with pytest.raises(CommError, match=sentence):
            broadcast_batch(bad if mesh.rank("tp") == 0 else None, mesh)
        with pytest.raises(CommError, match="On rank 1, " + sentence):
            check_same_batch(bad if mesh.rank("tp") == 1 else {"a": 1}, mesh)
    local = collections.namedtuple("local", "x")
    with pytest.raises(CommError, match="Rank 0 cannot broadcast its batch: .*local"):
        broadcast_batch(local(1), mesh)
    assert broadcast_batch({"still": "works"}, mesh) == {"still": "works"}


def differ(batches: list[Any]) -> str:
    """On a rank: the sentence that check_same_batch raises when rank r has ``batches[r]``."""
    mesh = ProcessMesh.create(ParallelConfig(tp=len(batches)))
    with pytest.raises(CommError) as caught:
        check_same_batch(batches[mesh.rank("tp")], mesh)
    return str(caught.value)


@pytest.mark.parametrize(
    ("mine", "sentence"),
    [
        ({"x": torch.tensor([[1, 2], [3, 9]]), "n": 1}, "batch['x'][1, 1] is 9 on rank 2, but 4 on rank 0; "),
        ({"x": torch.tensor([[1, 2], [3, 4]]), "n": 2}, "batch['n'] is 2 on rank 2, but 1 on rank 0; "),
        ({"x": torch.tensor([[1, 2], [3, 4]])}, "batch['n'] is missing on rank 2, but present on rank 0; "),
        (
            {"x": torch.tensor([[1, 2], [3, 4]]), "n": 1, "y": 0},
            "batch['y'] is present on rank 2, but missing ",
        ),
        (
            {"x": torch.tensor([[1, 2, 3]]), "n": 1},
            "batch['x'] is torch.int64 of shape [1, 3] on rank 2, but ",
        ),
        (
            {"x": torch.tensor([[1.0, 2], [3, 4]]), "n": 1},
            "batch['x'] is torch.float32 of shape [2, 2] on rank ",
        ),
        ({"x": torch.tensor([[1, 2], [3, 4]]), "n": True}, "batch['n'] is True on rank 2, but 1 on rank 0; "),
        ([], "batch is [] on rank 2, but missing on rank 0; "),
    ],
)
@pytest.mark.ranks(3, backend="gloo")
def test_key_rank_and_first_difference_are_named_on_every_rank(
    ranks: World, mine: Any, sentence: str
) -> None:
    right = {"x": torch.tensor([[1, 2], [3, 4]]), "n": 1}
    reordered = {"n": 1, "x": torch.tensor([[1, 2], [3, 4]])}
    told = ranks.run(differ, [right, reordered, mine])
    assert len(set(told)) == 1, "every rank raises the same"
    assert told[0].startswith(sentence) or sentence.startswith("batch is []")
    assert "rank=mesh.rank('dp'), or use broadcast_batch(batch, mesh)" in told[0]


@on_ranks(2)
def test_different_batches_are_found_on_npus() -> None:
    mesh = ProcessMesh.create(ParallelConfig(tp=2))
    batch = {"input_ids": torch.arange(12, device=mesh.device).view(3, 4)}
    check_same_batch(batch, mesh)
    batch["input_ids"][2, 1] += mesh.rank("tp")
    with pytest.raises(
        CommError, match=r"batch\['input_ids'\]\[2, 1\] is 10 on rank 1, but 9 on rank 0; ranks of"
    ):
        check_same_batch(batch, mesh)


def nested(leaves: st.SearchStrategy) -> st.SearchStrategy:
    """Batches of any nesting."""
    keys = st.text(max_size=3) | st.integers(0, 3)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )


tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(
        dtype
    ),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 9),
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)


@given(nested(tensors | plain))
def test_taking_apart_and_putting_together_gives_the_batch_back(batch: Any) -> None:
    skeleton, parts = take_apart(batch)
    assert first_difference(put_together(skeleton, iter(parts)), batch) is None


@given(nested(tensors), st.data())
def test_one_changed_bit_is_found(batch: Any, data: st.DataObject) -> None:
    skeleton, parts = take_apart(batch)
    parts = [part.clone() for part in parts]
    full = [part for part in parts if part.numel()]
    if not full:
        assert first_difference(batch, batch) is None
        return
    flat = as_bytes(data.draw(st.sampled_from(full)))
    flat[data.draw(st.integers(0, flat.numel() - 1))] ^= 1
    assert first_difference(put_together(skeleton, iter(parts)), batch) is not None
