"""The rings tell what was called, by whom it is awaited, and what was never called."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.hang.dump import Call
from npu_plugins.diagnostics.hang.recorder import Ring, apply_ring_setting, groups
from npu_plugins.diagnostics.hang.stacks import point_to_point, waiting_spot
from tests.harness.fixtures import on_ranks

RINGS = {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_HCCL_TRACE_BUFFER_SIZE": "100"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("1000", "1000")),
        ({"NPU_PLUGINS_RING": "0"}, ("0", "0")),
        ({"NPU_PLUGINS_RING": "50", "TORCH_FR_BUFFER_SIZE": "7"}, ("7", "50")),
    ],
)
def test_the_size_of_the_rings(environ: dict[str, str], expected: tuple[str, str]) -> None:
    apply_ring_setting(environ)
    assert (environ["TORCH_FR_BUFFER_SIZE"], environ["TORCH_HCCL_TRACE_BUFFER_SIZE"]) == expected


def test_a_size_that_is_no_number_is_refused() -> None:
    with pytest.raises(DiagnosticsError, match="NPU_PLUGINS_RING=many is no whole number"):
        apply_ring_setting({"NPU_PLUGINS_RING": "many"})


def _eventually(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _tell(call: Call) -> tuple[Any, ...]:
    return call.group, call.sequence, call.p2p, call.op, call.input_shapes, call.state


def _collectives(device: str, ring: Ring) -> None:
    """Three collectives of two groups, then one that rank 1 enters only when rank 0 has looked."""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(4, 5, device=device)
    group = dist.new_group([0, 1], group_desc="tp")
    dist.all_reduce(tensor)
    dist.broadcast(tensor[0], 0, group=group)
    work = None
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor.half(), group=group, async_op=True)
        _eventually(lambda: [call.sequence for call in ring.pending()] == [2])
        open_calls = [call for call in ring.calls() if call.state != "completed"]
        assert [(call.group, call.sequence, call.op) for call in open_calls] == [
            (group.group_name, 2, "all_reduce")
        ]
        assert open_calls[0].input_dtypes == ("Half",) and open_calls[0].input_shapes == ((4, 5),)
        assert "_collectives" in [frame.function for frame in open_calls[0].stack]
        store.set("looked", "yes")
    else:
        store.get("looked")
        assert ring.sequences() == {"0": 1, group.group_name: 1}
        work = dist.all_reduce(tensor.half(), group=group, async_op=True)
    work.wait()
    _eventually(lambda: ring.pending() == ())
    expected = [
        ("0", 1, False, "all_reduce", ((4, 5),), "completed"),
        (group.group_name, 1, False, "broadcast", ((5,),), "completed"),
        (group.group_name, 2, False, "all_reduce", ((4, 5),), "completed"),
    ]
    assert [_tell(call) for call in ring.calls()] == expected
    assert [(found.name, found.description, found.ranks) for found in groups()] == [
        ("0", "world", (0, 1)),
        (group.group_name, "tp", (0, 1)),
    ]


@on_ranks(2, backend="gloo", env=RINGS)
def test_gloo_ring() -> None:
    _collectives("cpu", Ring())


@on_ranks(2, backend="hccl", env=RINGS)
def test_hccl_ring() -> None:
    ring = Ring()
    _collectives("npu", ring)
    tensor = torch.ones(3, device="npu")
    dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)
    torch.npu.synchronize()
    call = ring.calls()[-1]
    assert (call.p2p, call.sequence, call.op) == (True, 1, ("send", "recv")[dist.get_rank()])


@on_ranks(2, backend="gloo", env=RINGS)
def test_a_receive_of_gloo_which_its_ring_does_not_know_is_told_from_the_main_thread() -> None:
    import threading

    store = dist.distributed_c10d._get_default_store()
    found: list[Any] = []

    def look() -> None:
        _eventually(lambda: point_to_point(5.0) is not None)
        first, second = waiting_spot(), waiting_spot()
        found.extend(
            [point_to_point(5.0), first is not None and second is not None and first.same_wait(second)]
        )
        own.set("looked", "yes")

    own = store.clone()
    tensor = torch.ones(2, 3)
    if dist.get_rank() == 0:
        assert waiting_spot() is None
        watcher = threading.Thread(target=look)
        watcher.start()
        dist.recv(tensor, 1)
        watcher.join()
        call, same = found
        assert _tell(call) == ("0", 0, True, "recv", ((2, 3),), "scheduled") and call.peer == 1 and same
    else:
        store.get("looked")
        dist.send(tensor, 0)
