"""Every collective on simulated NPUs equals a plain reference, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import World
from tests.simulator.collective_cases import CAST_DTYPES, MOVED_DTYPES, REDUCED_DTYPES, REDUCTIONS, Case
from tests.simulator.collective_ops import MOVING, PAIRWISE, REDUCING, UNEVEN, check

WORLD = 4
BACKEND = "hccl"
DEVICE = "npu"
EXAMPLES = 60
GROUPS = [(0, 1, 2, 3), (0, 1), (2, 3), (1, 3), (0, 1, 2), (1, 2, 3), (0,), (3,)]


@st.composite
def cases(draw: st.DrawFn, op: str) -> Case:
    """A case of `op` with everything else drawn."""
    group = draw(st.sampled_from([g for g in GROUPS if len(g) > 1] if op in PAIRWISE else GROUPS))
    reducing = op in REDUCING
    reduction = draw(st.sampled_from(REDUCTIONS)) if reducing else "sum"
    dtypes = (*REDUCED_DTYPES, *CAST_DTYPES) if op == "all_reduce" else REDUCED_DTYPES
    if not reducing:
        dtypes = MOVED_DTYPES
    elif reduction == "avg":
        dtypes = ("float16", "bfloat16", "float32")
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
        if ranks.broken:
            ranks.restart()
        ranks.run(check, case, DEVICE)

    property_holds()


@pytest.mark.ranks(WORLD, backend=BACKEND)
@pytest.mark.parametrize("op", [*REDUCING, *MOVING])
def test_every_dtype_and_reduction(op: str, ranks: World) -> None:
    """The grid that drawing could miss: all dtypes, all reductions."""
    for dtype in REDUCED_DTYPES if op in REDUCING else MOVED_DTYPES:
        for reduction in REDUCTIONS if op in REDUCING else ("sum",):
            if reduction == "avg" and not getattr(torch, dtype).is_floating_point:
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
