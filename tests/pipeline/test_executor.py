"""The executor alone: any schedule, any numbers, the memory of its formula, the traps of split backwards."""

from __future__ import annotations

import gc
import weakref
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from npu_plugins.pipeline.errors import PipelineError, ScheduleError
from npu_plugins.pipeline.executor import Executor, Job
from npu_plugins.pipeline.schedules import Schedule, add_communication, loop, parse_steps
from npu_plugins.pipeline.schedules.closed_forms import activations
from npu_plugins.pipeline.schedules.registry import TRAINING_SCHEDULES, build_schedule
from npu_plugins.pipeline.schedules.validate import validate
from npu_plugins.pipeline.split import DeferringLinear, defer_weight_gradients
from npu_plugins.tensor_parallel.deferred import WeightGradients
from tests.pipeline.schedules.strategies import schedules
from tests.pipeline.threads import Hub, LocalControl, LocalTransport, LoggingTransport, on_threads, same

WIDTH = 5
CPU = torch.device("cpu")


def make_stage(stage: int) -> nn.Module:
    """The layers of one stage."""
    torch.manual_seed(100 + stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))


def inputs_of(micro_batch: int) -> torch.Tensor:
    """What stage 0 reads; each micro-batch has rows of its own number."""
    generator = torch.Generator().manual_seed(micro_batch)
    return torch.randn(2 + micro_batch % 3, WIDTH, generator=generator)


def make_job(stages: dict[int, nn.Module]) -> Job:
    """Run the stages; the loss is the mean square."""
    return Job(
        lambda stage, value: stages[stage](value),
        inputs_of,
        lambda output, _: output.square().mean() if torch.is_grad_enabled() else None,
        lambda: None,
    )


def run_rank(
    schedule: Schedule, rank: int, hub: Hub, steps: int = 1, any_order: bool = False, transport: Any = None
) -> tuple[Executor, dict[int, nn.Module]]:
    """Run a schedule on one of the threads."""
    with hub.changed:  # all threads draw from one generator
        stages = {stage: make_stage(stage) for stage in schedule.placement.stages_of(rank)}
    store = WeightGradients()
    defer_weight_gradients(stages.values(), store)
    control: Any = LocalControl(hub, rank)
    transport = transport or LocalTransport(hub, rank, any_order)
    executor = Executor(rank, transport, control, CPU, store)
    digests = [micro_batch % 3 for micro_batch in range(schedule.micro_batches)]
    for _ in range(steps):
        for module in stages.values():
            module.zero_grad()
        failure = executor.run(schedule, make_job(stages), digests)
        assert failure is None, failure
        store.check_done()
    return executor, stages


def build(name: str, ranks: int, micro_batches: int, virtual_stages: int | None) -> Schedule | None:
    """A schedule with exchanges, or None where its generator refuses the numbers."""
    try:
        return add_communication(build_schedule(name, ranks, micro_batches, virtual_stages))
    except ScheduleError:
        return None


@pytest.mark.parametrize("name", TRAINING_SCHEDULES)
@settings(max_examples=12)
@given(data=st.data(), any_order=st.booleans())
def test_any_numbers(name: str, data: st.DataObject, any_order: bool) -> None:
    """The validator accepts, the executor finishes, its memory is the formula's, its gradients are right;
    whether or not receives may be posted before their turn. Up to 6 ranks, 5 stages
    a rank and 22 micro-batches."""
    schedule = add_communication(data.draw(schedules((name,))))
    validate(schedule)
    ranks, micro_batches, chunks = schedule.ranks, schedule.micro_batches, schedule.placement.chunks
    hub = Hub()
    results = on_threads(ranks, lambda rank: run_rank(schedule, rank, hub, 1 + any_order, any_order))
    whole = [make_stage(stage) for stage in range(schedule.placement.stages)]
    for micro_batch in range(micro_batches):
        value = inputs_of(micro_batch)
        for stage in whole:
            value = stage(value)
        value.square().mean().backward()
    for rank, (executor, stages) in enumerate(results):
        kept = Fraction(executor.most_in_flight, chunks)
        assert kept == activations(name, ranks, micro_batches, chunks, rank)
        for stage, module in stages.items():
            for parameter, wanted in zip(module.parameters(), whole[stage].parameters(), strict=True):
                assert same(parameter.grad, wanted.grad)


def test_descriptions_are_sent_once_for_each_shape() -> None:
    """Three shapes, ten micro-batches, three steps: two ranks exchange three descriptions, no more."""
    schedule = build("1f1b", 2, 10, None)
    assert schedule is not None
    hub = Hub()
    results = on_threads(2, lambda rank: run_rank(schedule, rank, hub, steps=3))
    assert [executor.control.described for executor, _ in results] == [3, 0]  # type: ignore[attr-defined]


def test_a_word_that_depends_on_what_goes_out_with_it() -> None:
    """Rank 0 posts its output together with the receive of what is made of it: that goes out first."""
    schedule = build("zb-v", 2, 1, None)
    assert schedule is not None and "[SA0@0>1 RA0@3<1]" in str(schedule)
    hub = Hub()
    results = on_threads(2, lambda rank: run_rank(schedule, rank, hub))
    assert [executor.control.described for executor, _ in results] == [1, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("any_order", [False, True])
def test_when_receives_are_posted(any_order: bool) -> None:
    """In their turn; or one action ahead where that is allowed, once it is known what will come. A sent
    activation is kept no longer than until its gradient has come."""
    schedule = build("1f1b", 2, 3, None)
    assert schedule is not None
    hub = Hub()
    logs: tuple[list[str], list[str]] = ([], [])

    def run(rank: int) -> None:
        control: Any = LocalControl(hub, rank)
        transport: Any = LoggingTransport(hub, rank, any_order, logs[rank])
        executor = Executor(rank, transport, control, CPU, WeightGradients())
        job = make_job({rank: make_stage(rank)})

        def forward(stage: int, value: Any) -> Any:
            logs[rank].append("F")
            return job.forward(stage, value)

        logged = job._replace(forward=forward, accumulate=lambda: logs[rank].append("B"))
        for _ in range(2):
            logs[rank].clear()
            assert executor.run(schedule, logged, [0, 1, 2]) is None

    on_threads(2, run)
    in_turn = "F SA0 F SA1 RG0 waited-0 B F SA2 RG1 waited-1 B RG2 waited-2 B"
    ahead = "F SA0 RG0 F SA1 waited-0 B RG1 F SA2 RG2 waited-1 B waited-2 B"
    assert " ".join(logs[0]) == (ahead if any_order else in_turn)


def test_a_shape_that_breaks_its_promise() -> None:
    """Shapes that depend on values, not on the shapes of the input: refused, or told each time when asked."""
    schedule = build("1f1b", 2, 3, None)
    assert schedule is not None

    def run(rank: int, hub: Hub, dynamic: bool) -> Any:
        control: Any = LocalControl(hub, rank)
        transport: Any = LocalTransport(hub, rank)
        executor = Executor(rank, transport, control, CPU, WeightGradients(), dynamic_shape=dynamic)
        stages = {rank: make_stage(rank)}
        job = make_job(stages)._replace(forward=lambda stage, value: stages[stage](value[: 1 + len(seen)]))
        seen: list[Any] = []

        def load(micro_batch: int) -> torch.Tensor:
            seen.append(micro_batch)
            return torch.ones(9, WIDTH)

        return executor.run(schedule, job._replace(load=load), [7, 7, 7])

    hub = Hub()
    first, second = on_threads(2, lambda rank: run(rank, hub, False))
    assert isinstance(first.error, PipelineError) and "dynamic_shape" in str(first.error)
    assert str(first.action) == "F1@0" and second is None
    hub = Hub()
    assert on_threads(2, lambda rank: run(rank, hub, True)) == [None, None]


# Traps when splitting input and weight gradients, on one rank


class Watch(nn.Module):
    """Keeps a weak reference to what the backward of tanh needs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[weakref.ref[torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        self.seen.append(weakref.ref(y.untyped_storage()))  # type: ignore[arg-type]
        return y * 2


def run_alone(stage: nn.Module, steps: str, store: WeightGradients) -> Executor:
    """Run actions of one rank that is the whole pipeline."""
    nothing: Any = LocalTransport(Hub(), 0)
    executor = Executor(0, nothing, nothing, CPU, store)
    parsed = parse_steps(steps)
    schedule = Schedule("by hand", loop(1), 1 + max(step.micro_batch for step in parsed), (parsed,))  # type: ignore[union-attr]
    failure = executor.run(schedule, make_job({0: stage}), range(schedule.micro_batches))
    if failure:
        raise failure.error
    return executor


def test_activations_do_not_wait_for_w() -> None:
    """I frees everything but the inputs of the linear layers; the graph behind those must not be kept."""
    watch, store = Watch(), WeightGradients()
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), watch, nn.Linear(WIDTH, WIDTH))
    defer_weight_gradients([stage], store)
    gc.collect()
    run_alone(stage, "F0@0 I0@0", store)
    assert store.pending == [(0, 0)]
    assert [reference() for reference in watch.seen] == [None]


@pytest.mark.parametrize("reentrant", [False, True])
def test_weight_gradients_survive_recomputation(reentrant: bool) -> None:
    """Saved tensors give back something else than the Parameter then; and the layers run once more only."""
    store, calls = WeightGradients(), []
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    inner.register_forward_pre_hook(lambda *_: calls.append(1))

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(WIDTH, WIDTH), inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=reentrant)

    stage = Recomputed()
    run_alone(stage, "F0@0 B0@0", store)
    wanted = [parameter.grad for parameter in stage.parameters()]
    stage.zero_grad()
    calls.clear()
    defer_weight_gradients([stage], store)
    run_alone(stage, "F0@0 I0@0 W0@0", store)
    assert len(calls) == 2, "forward and one recomputation"
    for parameter, gradient in zip(stage.parameters(), wanted, strict=True):
        assert same(parameter.grad, gradient)


def test_layers_that_cannot_be_split_are_right() -> None:
    """Subclasses, shared weights in functional style, norms and embeddings: W of all of them runs with I."""

    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.doubled, self.plain = Doubled(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.norm, self.frozen = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.frozen(self.plain(self.doubled(x))))
            return nn.functional.linear(x, self.plain.weight) + self.plain(x)

    torch.manual_seed(3)
    stage, store = Mixed(), WeightGradients()
    run_alone(stage, "F0@0 F1@0 B0@0 B1@0", store)
    wanted = {name: parameter.grad for name, parameter in stage.named_parameters() if parameter.requires_grad}
    stage.zero_grad()
    defer_weight_gradients([stage], store)
    assert type(stage.plain) is DeferringLinear and type(stage.doubled) is Doubled
    run_alone(stage, "F0@0 F1@0 I0@0 I1@0 W0@0 W1@0", store)
    for name, gradient in wanted.items():
        assert same(stage.get_parameter(name).grad, gradient), name
    assert stage.frozen.weight.grad is None


def test_conv1d_of_transformers() -> None:
    """GPT-2's linear layers store their weight transposed."""
    from transformers.pytorch_utils import Conv1D

    stage, store = nn.Sequential(Conv1D(7, WIDTH), nn.Tanh(), Conv1D(WIDTH, 7)), WeightGradients()
    run_alone(stage, "F0@0 B0@0", store)
    wanted = [parameter.grad for parameter in stage.parameters()]
    stage.zero_grad()
    defer_weight_gradients([stage], store)
    run_alone(stage, "F0@0 I0@0", store)
    assert [parameter.grad for parameter in stage.parameters()] == [None] * 4, "all of it is deferred"
    store.run(0, 0)
    for parameter, gradient in zip(stage.parameters(), wanted, strict=True):
        assert same(parameter.grad, gradient)


def test_autocast_casts_as_for_torchs_own_layer() -> None:
    stage, store = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), WeightGradients()
    gradients = []
    for split in (False, True):
        if split:
            defer_weight_gradients([stage], store)
        stage.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = stage(inputs_of(0)).float().square().mean()
        with store.at(0, 0):
            loss.backward()
        store.run(0, 0)
        gradients.append([parameter.grad.clone() for parameter in stage.parameters()])  # type: ignore[union-attr]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-3)
