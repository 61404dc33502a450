"""The accelerator against torch.npu."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from tests.accelerator.conftest import KeptWorld
from tests.accelerator.interface import CHECKS
from tests.harness.fixtures import on_ranks

pytestmark = pytest.mark.npu
PRELOAD = ("deepspeed",)
NAMES = sorted({check.__name__ for check in CHECKS.values()})


def test_every_member_of_the_interface_has_a_check() -> None:
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

    assert {name for name in dir(DeepSpeedAccelerator) if not name.startswith("_")} == set(CHECKS)


def run_check(name: str) -> None:
    """On a rank: one check, with DeepSpeed's accelerator as it finds it."""
    from deepspeed.accelerator import get_accelerator

    check = next(check for check in CHECKS.values() if check.__name__ == name)
    accelerator = get_accelerator()
    assert type(accelerator).__module__ == "npu_plugins.accelerator.npu_accelerator"
    check(accelerator)


@pytest.mark.parametrize("name", NAMES)
def test_interface(one_rank: KeptWorld, name: str) -> None:
    one_rank.run(run_check, name)


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether the condition comes true within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@on_ranks(2, preload=PRELOAD)
def test_memory_of_other_processes_is_not_available() -> None:
    import torch
    import torch.distributed as dist
    from deepspeed.accelerator import get_accelerator

    accelerator, gibi = get_accelerator(), 2**30
    rank = dist.get_rank()
    before = accelerator.available_memory(0)
    dist.barrier()
    if rank == 1:
        taken = torch.empty(4 * gibi, dtype=torch.uint8, device="npu:0")
    dist.barrier()
    if rank == 0:
        # The simulated driver looks at other processes now and then; a card's driver at once.
        assert eventually(lambda: before - accelerator.available_memory(0) >= 4 * gibi)
        assert accelerator.memory_allocated(0) < gibi  # none of it is this process's
    dist.barrier()
    if rank == 1:
        del taken
        torch.npu.empty_cache()
    dist.barrier()
    assert eventually(lambda: before - accelerator.available_memory(0) < gibi)


@on_ranks(1, preload=PRELOAD)
def test_warns_once_of_a_variable_that_chooses_no_npu() -> None:
    import os

    from npu_plugins.accelerator import NpuAccelerator

    os.environ.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("npu_plugins").addHandler(handler)
    accelerator = NpuAccelerator()
    accelerator.device_count()
    accelerator.device_count()
    assert len(messages) == 1
    assert "CUDA_VISIBLE_DEVICES=0 does not choose NPUs" in messages[0]


@on_ranks(2, preload=PRELOAD)
def test_gradient_norms_are_not_reduced_in_fp64() -> None:
    import torch
    import torch.distributed as dist
    from deepspeed.accelerator import get_accelerator

    with pytest.raises(RuntimeError, match="kDouble|Unsupported data type"):
        dist.all_reduce(torch.ones(1, dtype=torch.float64, device="npu"))
    assert not get_accelerator().is_fp64_supported()
