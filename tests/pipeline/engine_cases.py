"""What ranks run in test_engine.py."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.pipeline.models import WIDTH, Case, Whole, drawn_from, layers, loss_fn, train_whole
from tests.pipeline.running import make_engine, relative, train, use_cpu


class Spread(nn.Module):
    """Makes a dict of several tensors, one of which needs no gradient, and of plain values."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with drawn_from(seed):
            self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
        x = self.linear(inputs["x"])
        return {"x": x, "pair": (torch.tanh(x), inputs["keep"]), "scale": 2.0, "none": None}


class Merge(nn.Module):
    """Takes that dict and makes one of the kind it was made of."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with drawn_from(seed):
            self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        second, keep = inputs["pair"]
        assert keep.dtype == torch.bool and inputs["none"] is None
        x = self.linear(inputs["x"] * inputs["scale"] + second).masked_fill(~keep, 0.0)
        return {"x": x, "keep": keep}


def dict_loss(outputs: dict[str, torch.Tensor], labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two losses, of which the sum is minimised."""
    square, size = F.mse_loss(outputs["x"], labels), outputs["x"].abs().mean()
    return {"square": square, "loss": square + 0.1 * size, "size": size}


def dict_batches(step: int, count: int) -> Iterator[dict[str, torch.Tensor]]:
    """Inputs by name, and labels."""
    for index in range(count):
        generator = torch.Generator().manual_seed(step * 100 + index)
        x, labels = torch.randn(2, 3, 5, WIDTH, generator=generator)
        yield {"x": x, "keep": torch.rand(3, 5, 1, generator=generator) > 0.3, "labels": labels}


def train_dicts(backend: str, schedule: str) -> None:
    """Dicts, tuples, bools and plain values travel; several losses are reported."""
    if backend == "gloo":
        use_cpu()
    import deepspeed
    from deepspeed.pipe import LayerSpec

    from npu_plugins.pipeline.module import PipelineModule

    case = Case(schedule)
    specs = [LayerSpec(kind, seed) for seed in range(4) for kind in (Spread, Merge)]
    config = case.ds_config()
    model = PipelineModule(specs, num_stages=2, loss_fn=dict_loss, config=config, partition_method=[1, 7])
    whole = nn.Sequential(*[kind(seed) for seed in range(4) for kind in (Spread, Merge)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    reference = torch.optim.SGD(whole.parameters(), lr=0.1)
    for step in range(3):
        loss = engine.train_batch(dict_batches(step, case.micro_batches))
        reference.zero_grad()
        sums = torch.zeros(3)
        for batch in dict_batches(step, case.micro_batches):
            losses = dict_loss(whole(batch), batch["labels"])
            (losses["loss"] / case.micro_batches).backward()
            sums += (
                torch.stack([losses["loss"], losses["square"], losses["size"]]).detach() / case.micro_batches
            )
        reference.step()
        torch.testing.assert_close(loss.cpu(), sums[0], rtol=1e-6, atol=0)
        others = engine.get_additional_losses()
        assert list(others) == ["square", "size"]
        torch.testing.assert_close(torch.stack(list(others.values())).cpu(), sums[1:], rtol=1e-6, atol=0)
    for name, parameter in engine.module.named_parameters():
        assert relative(parameter.detach().cpu(), whole.get_parameter(name)) < 1e-6, name
    engine.destroy()


def evaluate(backend: str, schedule: str) -> None:
    """Losses and logits of an evaluation, between two training steps that do not notice."""
    case = Case(schedule, micro_batches=4)
    engine = make_engine(case, backend, 2, plain_initialize=False)
    whole = Whole(case)
    batches = list(case.batches(7))
    wanted = [loss_fn(whole(ids), labels).item() for ids, labels in batches]
    loss = engine.eval_batch(iter(batches))
    assert abs(loss.item() - sum(wanted) / 4) < 1e-6 * wanted[0]
    result, logits = engine.eval_batch(iter(batches[:3]), return_logits=True, num_micro_batches=3)
    assert abs(result.item() - sum(wanted[:3]) / 3) < 1e-6 * wanted[0]
    assert (logits is not None) == engine.is_last_stage()
    if logits is not None:
        for found, (ids, _) in zip(logits, batches[:3], strict=True):
            torch.testing.assert_close(found.cpu(), whole(ids).detach(), rtol=1e-5, atol=1e-6)
    each = engine.eval_batch(iter(batches), reduce_output=None)
    if engine.is_last_stage():
        assert [round(loss.item(), 5) for loss in each] == [round(loss, 5) for loss in wanted]
    _, logits = engine.eval_batch(
        iter(batches[:1]), return_logits=True, compute_loss=False, num_micro_batches=1
    )
    if logits is not None:
        torch.testing.assert_close(logits.cpu(), whole(batches[0][0]).detach(), rtol=1e-5, atol=1e-6)
    losses = [engine.train_batch(case.batches(step)).item() for step in range(2)]
    found = train_whole(replace(case, steps=2)).losses
    assert max(abs(a - b) / b for a, b in zip(losses, found, strict=True)) < 1e-6
    engine.destroy()


def dropout(backend: str, schedule: str) -> None:
    """Recomputation repeats dropout exactly: training with it and without is the same to the bit."""
    records = []
    for recomputation in ("none", "full", 2):
        torch.manual_seed(5)
        if backend == "hccl":
            torch.npu.manual_seed(5)
        records.append(train(Case(schedule, dropout=0.3, recomputation=recomputation, steps=2), backend, 2))
    for record in records[1:]:
        assert record.losses == records[0].losses
        for name, gradient in record.gradients.items():
            assert relative(gradient, records[0].gradients[name]) < 1e-6, name
    without = train(Case(schedule, steps=2), backend, 2)
    assert without.losses != records[0].losses, "dropout does something"


def seeded_layers(backend: str) -> None:
    """With seed_layers dropout depends on layer and micro-batch alone, so not on the schedule or the cut."""
    losses = []
    for schedule in ("1f1b", "zb-v"):
        case = Case(schedule, dropout=0.3, steps=2)
        config = case.ds_config()
        config["pipeline"]["seed_layers"] = True
        case = replace(case, extra=(("pipeline", config["pipeline"]),))
        losses.append(train(case, backend, 2).losses)
    assert losses[0] == losses[1]


class Failing(nn.Module):
    """Raises in its forward, or in its backward, at the third micro-batch."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when, self.calls = when, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3 and self.when == "forward":
            raise ValueError("the third one is bad")
        if self.calls == 3 and self.when == "backward":
            x.register_hook(self._fail)
        return x

    def _fail(self, gradient: torch.Tensor) -> None:
        raise ValueError("the third one is bad")


def a_stage_fails(backend: str, schedule: str, where: int, when: str) -> None:
    """Every rank raises the same, soon, and names the stage; the next step is as if nothing had happened."""
    case = Case(schedule, steps=2)
    engine = make_engine(case, backend, 2)
    stage = engine.module.placement.stages - 1 if where else 0
    failing = Failing(when)
    if stage in engine.module.own_stages:
        # Behind a layer with parameters, so that what passes it has a gradient.
        engine.module.stage_funcs[stage].insert(1, failing)
    rank = engine.module.placement.rank_of[stage]
    began = time.monotonic()
    _expect(
        engine,
        case,
        rf"step 1 failed on rank {rank} \(stage .*{stage}.*\) at [FBI]2@{stage}: ValueError: the third",
    )
    assert time.monotonic() - began < 20
    losses = [engine.train_batch(case.batches(step)).item() for step in range(2)]
    wanted = train_whole(case).losses
    assert max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True)) < 1e-6
    engine.destroy()


def _expect(engine: Any, case: Case, words: str, batches: Any = None) -> None:
    import pytest

    from npu_plugins.pipeline.errors import StageError

    with pytest.raises(StageError, match=words):
        engine.train_batch(case.batches(0) if batches is None else batches)


def data_ends(backend: str) -> None:
    """One rank's iterator ends in the middle of a step, or gives no pairs: every rank raises the same."""
    case = Case("1f1b")
    engine = make_engine(case, backend, 2)
    batches = list(case.batches(0))
    for short in (0, 1):
        words = (
            rf"step 1 failed on rank {short} \(stage {short}\) at its data: .* after 3 of the 4 micro-batches"
        )
        _expect(engine, case, words, iter(batches[:3] if dist.get_rank() == short else batches))
    _expect(engine, case, "after 0 of the 4.*; and on rank 1", iter([]))
    _expect(
        engine, case, "a Tensor of length 2; the iterator must give pairs", iter([ids for ids, _ in batches])
    )
    _expect(engine, case, "ZeroDivisionError", (1 / 0 for _ in batches))
    assert engine.global_steps == 0
    assert engine.train_batch(iter(batches)).item() == train(replace(case, steps=1), backend, 2).losses[0]
    engine.destroy()


def trace(backend: str, directory: str) -> None:
    """The measured timeline of one step is written, whole."""
    path = Path(directory, "step-{step}.json")
    case = Case("zb-h1", steps=3)
    config = case.ds_config()
    config["pipeline"] |= {"trace_steps": [2], "trace_file": str(path)}
    train(replace(case, extra=(("pipeline", config["pipeline"]),)), backend, 2)
    dist.barrier()
    assert [each.name for each in Path(directory).iterdir()] == ["step-2.json"]
    events = [
        each
        for each in json.loads(Path(directory, "step-2.json").read_text())["traceEvents"]
        if "dur" in each
    ]
    names = {(each["tid"], each["name"]) for each in events}
    kinds = {0: "FB", 1: "FIW"}  # nobody waits for stage 0's input gradient
    assert names == {(s, f"{kind}{i}@{s}") for s in (0, 1) for kind in kinds[s] for i in range(4)}
    assert all(each["ts"] >= 0 and each["dur"] > 0 for each in events)
    ends = {each["name"]: each["ts"] + each["dur"] for each in events}
    starts = {each["name"]: each["ts"] for each in events}
    assert all(starts[f"F{i}@1"] >= ends[f"F{i}@0"] for i in range(4)), "one clock for all ranks"


def stock_modules_keep_the_stock_engine() -> None:
    """The hook changes nothing for DeepSpeed's own modules, classes and checks."""
    use_cpu()
    import deepspeed
    from deepspeed.runtime.pipe.engine import PipelineEngine as Stock

    case = Case(steps=1)
    deepspeed.init_distributed("gloo")
    model = deepspeed.pipe.PipelineModule(
        layers(case), num_stages=2, loss_fn=loss_fn, partition_method="uniform"
    )
    config = {key: value for key, value in case.ds_config().items() if key != "pipeline"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    assert type(engine) is Stock and isinstance(engine, deepspeed.PipelineEngine)
    assert issubclass(Stock, deepspeed.PipelineEngine) and not issubclass(int, deepspeed.PipelineEngine)
    wanted = train_whole(case).losses[0]
    assert abs(engine.train_batch(case.batches(0)).item() - wanted) < 1e-6 * wanted
    engine.destroy()


def refusals(backend: str) -> None:
    """What cannot be done is refused, with what to do instead."""
    import pytest

    from npu_plugins.pipeline.errors import PipelineError
    from npu_plugins.pipeline.module import PipelineModule

    def refused(words: str, schedule: str = "1f1b", **extra: Any) -> None:
        with pytest.raises(PipelineError, match=words):
            make_engine(Case(schedule, extra=tuple(extra.items())), backend, 2)

    for stage in (2, 3):
        refused(f"stage is {stage} with a pipeline.*use stage 1", zero_optimization={"stage": stage})
    refused('set "overlap_comm": false', zero_optimization={"stage": 1, "overlap_comm": True})
    refused("no key of the DeepSpeed configuration; did you mean schedule", pipeline={"schedules": "1f1b"})
    refused("stages is 2 in the call, but 4", pipeline={"stages": 4})
    few = {"gradient_accumulation_steps": 3, "train_batch_size": 6}
    refused("4", "dualpipe-v", **few)
    model = PipelineModule([nn.Linear(2, 2)] * 4, num_stages=2)
    import deepspeed

    for section, words in (
        ({"schedule": "gpipe"}, "schedule is 'gpipe' in the configuration, but .* built with '1f1b'"),
        ({"stages": 1}, "stages is 1 in the configuration, but .* 2"),
        ({"recomputation": "full"}, "recomputation is 1"),
    ):
        with pytest.raises(PipelineError, match=words):
            deepspeed.initialize(model=model, config={**Case().ds_config(), "pipeline": section})
    _refuse_unlike_groups()
    with pytest.raises(PipelineError, match="4 stages for 3 layers"):
        PipelineModule([nn.Linear(2, 2)] * 3, num_stages=2, schedule="zb-v")
    with pytest.raises(PipelineError, match="nothing says how many stages"):
        PipelineModule([nn.Linear(2, 2)] * 3)
    with pytest.raises(PipelineError, match="reentrant"):
        from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

        PipelineModule([nn.Linear(2, 2)] * 3, num_stages=2, activation_checkpoint_func=checkpoint)


def _refuse_unlike_groups() -> None:
    """ZeRO-1 sums norms group by group: ranks with unlike numbers of groups would wait for ever."""
    import deepspeed
    import pytest

    from npu_plugins.pipeline.errors import PipelineError
    from npu_plugins.pipeline.module import PipelineModule
    from tests.pipeline.layout_cases import grouped

    config = Case(tied=True, zero=1).ds_config()
    del config["pipeline"]["partition"]
    model = PipelineModule(
        layers(Case(tied=True)), num_stages=2, loss_fn=loss_fn, config=config, partition_method=[1, 7]
    )
    optimizer = torch.optim.AdamW(grouped(model))
    with pytest.raises(PipelineError, match="1 on pipeline rank 0, 2 on pipeline rank 1.*ZeRO stage 0"):
        deepspeed.initialize(model=model, optimizer=optimizer, config=config)


def measured_cut(backend: str) -> None:
    """With partition time every rank cuts alike, and the heavy layer gets a stage for itself."""
    if backend == "gloo":
        use_cpu()
    from npu_plugins.pipeline.module import PipelineModule

    heavy = nn.Sequential(*[nn.Linear(256, 256) for _ in range(40)])
    light = [nn.Linear(256, 256), nn.Tanh(), nn.Tanh()]
    model = PipelineModule(
        [*light, heavy], num_stages=2, partition_method="time", sample_input=torch.ones(64, 256)
    )
    assert model.parts == [0, 3, 4]


def numbers_that_change(backend: str) -> None:
    """Other numbers of micro-batches between steps, two engines side by side, evaluations in between."""
    import pytest

    from npu_plugins.pipeline.errors import PipelineError, ScheduleError

    case = Case("dualpipe-v", dropout=0.5)
    engine, other = make_engine(case, backend, 2), make_engine(Case("1f1b"), backend, 2)
    losses = [other.train_batch(case.batches(0)).item(), engine.eval_batch(case.batches(0)).item()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6), "no dropout in evaluation"
    for count in (1, 5):
        loss = engine.eval_batch(replace(case, micro_batches=8).batches(0), num_micro_batches=count)
        assert loss.shape == ()
    with pytest.raises(ScheduleError, match="micro_batches=0"):
        engine.eval_batch(case.batches(0), num_micro_batches=0)
    engine.set_train_batch_size(4)
    for _ in range(2):
        with pytest.raises(ScheduleError, match="needs 4 micro-batches or more, not 2"):
            engine.train_batch(case.batches(0))
    engine.set_train_batch_size(12)
    assert engine.train_batch(replace(case, micro_batches=6).batches(0)).item() != losses[1], "dropout again"
    assert engine.global_steps == 1
    for wrong in ("/proc/none/trace.json", "/proc"):
        section = {**case.ds_config()["pipeline"], "trace_steps": 1, "trace_file": wrong}
        with pytest.raises(PipelineError, match="which rank 0 cannot write: .*; give a file"):
            make_engine(replace(case, extra=(("pipeline", section),)), backend, 2)
    engine.destroy()
    other.destroy()
