"""Traps in splitting backwards, and DeepSpeed's faults in pipelines: one test each.

Four have theirs beside what they are about: activations that wait for W, and weight gradients under
checkpointing, in test_executor.py; overlap_comm and ZeRO-2/3 in test_engine.py's refusals.
"""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from npu_plugins.pipeline.p2p import Transfer
from npu_plugins.pipeline.schedules import add_communication
from npu_plugins.pipeline.schedules.registry import build_schedule
from npu_plugins.pipeline.split import defer_weight_gradients
from npu_plugins.tensor_parallel.deferred import WeightGradients
from tests.pipeline import trap_cases as cases
from tests.pipeline.conftest import Ranks
from tests.pipeline.models import Case
from tests.pipeline.running import train
from tests.pipeline.test_executor import WIDTH, run_alone, run_rank
from tests.pipeline.threads import Hub, LocalTransport, on_threads


class Counted(torch.autograd.Function):
    """The identity, counted both ways; a collective in its place would be fired as often."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, counts: dict[str, int]) -> torch.Tensor:
        ctx.counts = counts
        counts["forward"] += 1
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.counts["backward"] += 1
        return gradient, None


class Counting(nn.Module):
    """Two linear layers around a counted function, recomputed or not."""

    def __init__(self, recomputed: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.recomputed, self.counts = recomputed, {"forward": 0, "backward": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return checkpoint(self._inner, x, use_reentrant=False) if self.recomputed else self._inner(x)

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(Counted.apply(x, self.counts))


@pytest.mark.parametrize(("recomputed", "forwards"), [(False, 1), (True, 2)])
def test_a_custom_functions_backward_runs_once(recomputed: bool, forwards: int) -> None:
    """Splitting the graph would run it twice, and recompute five to eight times."""
    stage, store = Counting(recomputed), WeightGradients()
    defer_weight_gradients([stage], store)
    run_alone(stage, "F0@0 I0@0 W0@0", store)
    assert stage.counts == {"forward": forwards, "backward": 1}


class Watched(LocalTransport):
    """Counts the buffers of receives that exist at once."""

    def __init__(self, hub: Hub, rank: int) -> None:
        super().__init__(hub, rank)
        self.buffers: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def post(self, transfers: Any) -> list[Any]:
        """Post an exchange."""
        received: list[Transfer] = [transfer for transfer in transfers if not transfer.sends]
        self.buffers += [weakref.ref(each) for transfer in received for each in transfer.tensors]
        self.buffers = [buffer for buffer in self.buffers if buffer() is not None]
        self.most = max(self.most, len(self.buffers))
        return super().post(transfers)


def test_receive_buffers_are_made_when_they_are_posted() -> None:
    """And posted in the order of HCCL: the transport of these threads matches by nothing else."""
    schedule = add_communication(build_schedule("1f1b", 3, 24))
    hub = Hub()
    executors = on_threads(3, lambda rank: run_rank(schedule, rank, hub, transport=Watched(hub, rank))[0])
    assert [executor.most_in_flight for executor in executors] == [3, 2, 1]
    most = [executor.transport.most for executor in executors]
    assert max(most) <= 6 < 24, f"{most}: what is kept for backwards, and little more"


def test_zb_h1_equals_stock_deepspeed(two_cpus: Ranks) -> None:
    two_cpus.run(cases.equal_to_stock_deepspeed, two_cpus.backend)


def test_bf16_accumulation_gets_deferred_weight_gradients(two_cpus: Ranks) -> None:
    """A norm that lacks them is half as large."""
    split, whole = (
        two_cpus.run(train, Case(name, precision="bf16", clip=9.0, steps=1), "gloo", 2)
        for name in ("zb-h1", "1f1b")
    )
    assert split[0].norms == pytest.approx(whole[0].norms, rel=2e-2)


@pytest.mark.parametrize(("precision", "zero"), [("bf16", 0), ("fp16", 0), ("fp16", 1)])
def test_fault_a_adam_starts_at_its_first_step(two_npus: Ranks, precision: str, zero: int) -> None:
    two_npus.run(cases.adam_starts_at_one, two_npus.backend, precision, zero)


def test_fault_b_clipping_counts_all_stages(two_cpus: Ranks) -> None:
    two_cpus.run(cases.clipping_counts_all_stages, two_cpus.backend)


def test_fault_e_seeded_layers_are_cut_by_parameters(two_cpus: Ranks) -> None:
    two_cpus.run(cases.seeded_layers_are_cut_by_parameters, two_cpus.backend)


def test_fault_f_integers_are_recomputed(two_cpus: Ranks) -> None:
    two_cpus.run(cases.integers_are_recomputed, two_cpus.backend)


def test_faults_i_and_l_what_is_no_pipeline_is_refused(two_cpus: Ranks) -> None:
    two_cpus.run(cases.what_is_no_pipeline, two_cpus.backend)
