"""Every collective on simulated NPUs equals a plain reference, bit for bit."""

from __future__ import annotations

import re
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.harness import RankFailure, World
from tests.harness.fixtures import on_ranks
from tests.simulator.collective_cases import CAST_DTYPES, MOVED_DTYPES, REDUCED_DTYPES, REDUCTIONS, Case
from tests.simulator.collective_ops import MOVING, PAIRWISE, REDUCING, UNEVEN, check

WORLD = 4
BACKEND = "hccl"
DEVICE = "npu"
EXAMPLES = 60
GROUPS = [(0, 1, 2, 3), (0, 1), (2, 3), (1, 3), (0, 1, 2), (1, 2, 3), (0,), (3,)]


def reducible(dtype: str, reduction: str) -> bool:
    """What HCCL on an Atlas A2 takes."""
    return not (reduction == "prod" and dtype in ("int16", "bfloat16")) and not (
        reduction == "avg" and dtype in CAST_DTYPES
    )


@st.composite
def cases(draw: st.DrawFn, op: str) -> Case:
    """A case of `op` with everything else drawn."""
    group = draw(st.sampled_from([g for g in GROUPS if len(g) > 1] if op in PAIRWISE else GROUPS))
    reducing = op in REDUCING
    reduction = draw(st.sampled_from(REDUCTIONS)) if reducing else "sum"
    dtypes: tuple[str, ...] = MOVED_DTYPES
    if reducing:
        taken = (*REDUCED_DTYPES, *CAST_DTYPES) if op == "all_reduce" else REDUCED_DTYPES
        dtypes = tuple(dtype for dtype in taken if reducible(dtype, reduction))
    sizes = st.lists(st.integers(0, 5), min_size=len(group), max_size=len(group))
    shape = tuple(draw(st.lists(st.integers(0, 6), min_size=1, max_size=3)))
    return Case(
        op=op,
        dtype=draw(st.sampled_from(dtypes)),
        group=group,
        shape=shape,
        reduction=reduction,
        root=draw(st.integers(0, len(group) - 1)),
        sizes=tuple(draw(sizes)) if op in UNEVEN else (),
        layout=draw(st.sampled_from(("contiguous", "offset", "transposed"))),
        async_op=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


@pytest.mark.ranks(WORLD, backend=BACKEND)
@pytest.mark.parametrize("op", [*REDUCING, *MOVING])
def test_collective_equals_reference(op: str, ranks: World) -> None:
    @settings(max_examples=EXAMPLES)
    @given(case=cases(op))
    def property_holds(case: Case) -> None:
        try:
            ranks.run(check, case, DEVICE)
        except RankFailure:
            ranks.restart()  # an NPU that met an error stays in error, as a real one does
            raise

    property_holds()


@pytest.mark.ranks(WORLD, backend=BACKEND)
@pytest.mark.parametrize("op", [*REDUCING, *MOVING])
def test_every_dtype_and_reduction(op: str, ranks: World) -> None:
    """The grid that drawing could miss: all dtypes, all reductions."""
    for dtype in REDUCED_DTYPES if op in REDUCING else MOVED_DTYPES:
        for reduction in REDUCTIONS if op in REDUCING else ("sum",):
            if op in REDUCING and not reducible(dtype, reduction):
                continue
            ranks.run(
                check, Case(op, dtype, (0, 1, 2, 3), (5, 3), reduction, root=2, sizes=(2, 0, 3, 1)), DEVICE
            )


@pytest.mark.ranks(8, backend=BACKEND)
@pytest.mark.parametrize("op", [*REDUCING, *MOVING])
def test_eight_ranks_and_long_tensors(op: str, ranks: World) -> None:
    for group in (tuple(range(8)), (0, 2, 4, 6), (1, 3, 5, 7), (6, 7)):
        case = Case(op, "float32", group, (1 << 14, 3), sizes=tuple(range(len(group))), root=1, seed=5)
        ranks.run(check, case, DEVICE)


@pytest.mark.parametrize(
    ("dtype", "op", "message"),
    [
        ("float64", "SUM", "all_?reduce: Unsupported data type at::kDouble"),
        ("int16", "PRODUCT", "does not reduce int16 with prod"),
        ("bfloat16", "PRODUCT", "does not reduce bfp16 with prod"),
        ("int32", "BAND", "Cannot use ReduceOp.BAND with HCCL"),
    ],
)
@pytest.mark.ranks(2, backend=BACKEND)
def test_what_hccl_refuses_is_refused(dtype: str, op: str, message: str, ranks: World) -> None:
    def body() -> None:
        tensor = torch.ones(4, dtype=getattr(torch, dtype), device=DEVICE)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        torch.npu.synchronize()

    for outcome in ranks.outcomes(body):
        assert outcome.kind == "raised", "the card cannot do this, so the simulated one must not"
        assert re.search(message, outcome.text + outcome.log), outcome.text + outcome.log


@on_ranks(2)
def test_a_tensor_with_gaps_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Tensors must be contiguous"):
        dist.all_reduce(torch.ones(4, 4, device="npu")[:, ::2])


@on_ranks(2)
def test_channels_last_is_reduced_in_place() -> None:
    image = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    tensor = (image * (dist.get_rank() + 1)).to(memory_format=torch.channels_last).npu()
    dist.all_reduce(tensor)
    assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(tensor.cpu(), image * 3)


@on_ranks(4)
def test_reductions_are_deterministic_and_equal_on_all_ranks() -> None:
    """Sums of random floats differ with the order of summation: here it must be the same every time."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        given = torch.randn(10_007, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)
        results = []
        for _ in range(5):
            tensor = given.npu()
            dist.all_reduce(tensor)
            results.append(tensor.cpu())
        gathered: list[torch.Tensor | None] = [None] * 4
        dist.all_gather_object(gathered, results[0])
        assert all(torch.equal(result, results[0]) for result in (*results, *gathered))
        exact = sum(
            torch.randn(10_007, generator=torch.Generator().manual_seed(rank)).to(dtype).double()
            for rank in range(4)
        )
        tolerance = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(results[0].double(), exact, rtol=tolerance, atol=tolerance * 4)


@on_ranks(4)
def test_several_communicators_at_once() -> None:
    """Rows and columns of a 2 × 2 mesh and the world, all in flight together."""
    rank = dist.get_rank()
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    row, column = rows[rank // 2], columns[rank % 2]
    for step in range(20):
        base = float(rank + step)
        a, b, c = (torch.full((1000,), base, device="npu") for _ in range(3))
        works = [
            dist.all_reduce(a, group=row, async_op=True),
            dist.all_reduce(b, group=column, async_op=True),
            dist.all_reduce(c, async_op=True),
        ]
        for work in reversed(works):
            work.wait()
        partner_in_row, partner_in_column = rank ^ 1, rank ^ 2
        assert a[0].item() == base + partner_in_row + step
        assert b[-1].item() == base + partner_in_column + step
        assert c[500].item() == 6 + 4 * step


@on_ranks(4)
def test_asynchronous_collectives_complete_in_order() -> None:
    tensor = torch.ones(100_000, device="npu")
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(5)]
    works[-1].wait()
    tensor.add_(1)  # queued behind the last collective
    assert tensor.unique().tolist() == [4.0**5 + 1]
    assert all(work.is_completed() for work in works)


@on_ranks(4)
def test_objects_travel() -> None:
    rank = dist.get_rank()
    mine = {"rank": rank, "payload": "x" * (100 * rank), "nested": [(rank, None)]}
    gathered: list[dict | None] = [None] * 4
    dist.all_gather_object(gathered, mine)
    assert [item["rank"] for item in gathered if item] == [0, 1, 2, 3]
    assert gathered[3] is not None and len(gathered[3]["payload"]) == 300
    shared = [mine, rank] if rank == 2 else [None, None]
    dist.broadcast_object_list(shared, src=2)
    assert shared[0] == {"rank": 2, "payload": "x" * 200, "nested": [(2, None)]} and shared[1] == 2
    received: list[dict | None] = [None]
    dist.scatter_object_list(received, [{"to": i} for i in range(4)] if rank == 1 else None, src=1)
    assert received == [{"to": rank}]
    collected = [None] * 4 if rank == 3 else None
    dist.gather_object(mine["nested"], collected, dst=3)
    assert collected == ([[(i, None)] for i in range(4)] if rank == 3 else None)


@on_ranks(4)
def test_barrier_holds_until_the_last_arrives() -> None:
    entered = torch.zeros(1, dtype=torch.int64, device="npu")
    if dist.get_rank() == 3:
        time.sleep(0.4)
    entered.fill_(time.monotonic_ns())  # one clock for all processes of a machine
    dist.barrier()
    torch.npu.synchronize()
    left = time.monotonic_ns()
    dist.all_reduce(entered, op=dist.ReduceOp.MAX)
    assert left >= entered.item()


@on_ranks(4)
def test_a_group_can_be_destroyed_and_made_again() -> None:
    for round_number in range(5):
        group = dist.new_group([0, 1, 2, 3])
        tensor = torch.full((8,), float(round_number), device="npu")
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == 4 * round_number
        dist.destroy_process_group(group)


@on_ranks(2)
def test_coalesced_all_reduce() -> None:
    tensors = [torch.full((n,), float(dist.get_rank() + n), device="npu") for n in (1, 5, 9)]
    with _coalescing_manager(device=torch.device("npu", dist.get_rank())):
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [tensor[-1].item() for tensor in tensors] == [2 * n + 1 for n in (1, 5, 9)]


@on_ranks(4)
def test_functional_collectives_and_device_mesh() -> None:
    mesh = init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"))
    rank = dist.get_rank()
    summed = funcol.all_reduce(torch.full((3,), float(rank), device="npu"), "sum", mesh["tp"])
    assert summed.tolist() == [2.0 * rank + (1 if rank % 2 == 0 else -1)] * 3
    gathered = funcol.all_gather_tensor(torch.full((1,), float(rank), device="npu"), 0, mesh["dp"])
    assert gathered.tolist() == [float(rank % 2), float(rank % 2 + 2)]
