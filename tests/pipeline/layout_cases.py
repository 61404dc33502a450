"""Saving at one layout and going on at another: what ranks run in test_checkpoints.py."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import ProcessMesh
from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    shard_of,
)
from npu_plugins.tensor_parallel.shard import join
from tests.pipeline.models import (
    VOCABULARY,
    WIDTH,
    Block,
    Case,
    Embed,
    Whole,
    layers,
    loss_fn,
    make_optimizer,
)
from tests.pipeline.running import use_cpu

MICRO_BATCHES = 8
"""Of a step, over all replicas."""


@dataclass(frozen=True)
class Layout:
    """How a run is divided; the world's other ranks are replicas."""

    stages: int
    schedule: str = "1f1b"
    virtual_stages: int | None = None
    partition: Any = "uniform"
    zero: int = 0
    universal: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    """Of ZeRO."""
    precision: str | None = None
    """By default the case's."""
    tp: int = 1

    @property
    def replicas(self) -> int:
        """Ranks of the world that do the same on other micro-batches."""
        return dist.get_world_size() // (self.stages * self.tp)


def case_at(case: Case, at: Layout) -> Case:
    """The same training at a layout: as many micro-batches in all."""
    extra = dict(case.extra)
    if at.universal:
        extra["checkpoint"] = {"load_universal": True}
    if at.options:
        extra["zero_optimization"] = {"stage": at.zero, **dict(at.options)}
        extra["zero_force_ds_cpu_optimizer"] = False
    return replace(
        case,
        schedule=at.schedule,
        virtual_stages=at.virtual_stages,
        zero=at.zero,
        precision=at.precision or case.precision,
        micro_batches=MICRO_BATCHES // at.replicas,
        extra=tuple(extra.items()),
    )


def engine_at(case: Case, at: Layout, backend: str) -> Any:
    """Build an engine of ours."""
    gc.freeze()  # DeepSpeed's bf16 optimizer collects garbage six times, which takes long in a large process
    if backend == "gloo":
        use_cpu()
    import deepspeed

    from npu_plugins.pipeline.module import PipelineModule

    deepspeed.init_distributed(backend)
    case, mesh = case_at(case, at), None
    config = case.ds_config(at.replicas)
    config["pipeline"]["partition"] = at.partition
    if at.tp > 1:
        mesh = ProcessMesh.create(ParallelConfig(tp=at.tp, pp=at.stages, dp=at.replicas))
    specs = layers(case) if mesh is None else divided_layers(case, mesh)
    model = PipelineModule(specs, num_stages=at.stages, loss_fn=loss_fn, config=config, mesh=mesh)
    optimizer = make_optimizer(grouped(model), case)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def divided_layers(case: Case, mesh: ProcessMesh) -> list[Any]:
    """The layers with the same weights, divided over tp: by rows, by columns, and by rows with padding."""
    from deepspeed.pipe import LayerSpec

    group = mesh.group("tp")

    class Divided(Block):
        def __init__(self, seed: int, dropout: float) -> None:
            super().__init__(seed, dropout)
            up, down = self.up, self.down
            self.up = ColumnParallelLinear(WIDTH, 2 * WIDTH, group=group, seed=1)
            self.down = RowParallelLinear(2 * WIDTH, WIDTH, group=group, bias=False, seed=1)
            pairs = [(self.up.weight, up.weight), (self.up.bias, up.bias), (self.down.weight, down.weight)]
            _take(pairs)

    class DividedEmbed(VocabParallelEmbedding):
        def __init__(self) -> None:
            super().__init__(VOCABULARY, WIDTH, group=group, seed=1)
            _take([(self.weight, Embed().weight)])

    kinds = {Block: Divided, Embed: DividedEmbed}
    return [LayerSpec(kinds.get(spec.typename, spec.typename), *spec.module_args) for spec in layers(case)]


def _take(pairs: list[Any]) -> None:
    with torch.no_grad():
        for parameter, whole in pairs:
            shard = shard_of(parameter)
            assert shard is not None
            parameter.copy_(shard.take(whole))


def grouped(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups, as everyone makes them: matrices decay, vectors do not."""
    matrices = [each for each in model.parameters() if each.dim() > 1]
    vectors = [each for each in model.parameters() if each.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def micro_batches(case: Case, step: int, engine: Any) -> Iterator[Any]:
    """The replica's share of a step's micro-batches, whatever the layout."""
    mine, first = engine.micro_batches, engine.micro_batches * engine.grid.data_parallel_id
    whole = list(replace(case, micro_batches=MICRO_BATCHES).batches(step))
    return iter(whole[first : first + mine])


def go_on(case: Case, engine: Any, steps: range) -> list[float]:
    """Train; return the losses."""
    return [engine.train_batch(micro_batches(case, step, engine)).item() for step in steps]


def states_of(engine: Any) -> dict[str, dict[str, torch.Tensor]]:
    """What the optimizers of all ranks together hold of each parameter, by DeepSpeed's own bookkeeping."""
    named = engine.module.named_parameters()
    pieces = [piece for name, parameter in named for piece in _pieces(engine, name, parameter)]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, pieces)
    found: dict[tuple[str, str], dict[int, torch.Tensor]] = {}
    seen: dict[tuple[str, str, int], torch.Tensor] = {}
    shards = {}
    for name, shape, shard, start, held in (piece for each in everyone for piece in each):
        shards[name], rank = shard, shard.rank if shard else 0
        for key, value in held.items():
            full = found.setdefault((name, key), {}).setdefault(rank, torch.zeros(shape))
            known = seen.setdefault((name, key, rank), torch.zeros(full.numel(), dtype=torch.bool))
            place = slice(start, start + value.numel())
            again = known[place]
            assert torch.equal(full.view(-1)[place][again], value[again]), f"copies of {name} differ in {key}"
            full.view(-1)[place], known[place] = value, True
    assert all(known.all() for known in seen.values())
    result: dict[str, dict[str, torch.Tensor]] = {}
    for (name, key), parts in found.items():
        ordered = [parts[rank] for rank in sorted(parts)]
        result.setdefault(name, {})[key] = join(ordered, shards[name]) if shards[name] else ordered[0]
    return result


def _pieces(engine: Any, name: str, parameter: torch.Tensor) -> list[Any]:
    """(name, shape, shard, start, tensors by key) of what this rank's optimizer holds of a parameter."""
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    master, inside, start = parameter, slice(None), 0
    for halves, masters in zip(
        getattr(optimizer, "fp16_groups", []), getattr(optimizer, "fp32_groups", []), strict=True
    ):
        for half, single in zip(halves, masters, strict=True):
            master = single if half is parameter else master
    if hasattr(parameter, "_hp_mapping"):
        mapping = parameter._hp_mapping
        if mapping is None:
            return []
        groups = enumerate(_bit16_groups(optimizer))
        group = next(index for index, each in groups if any(p is parameter for p in each))
        address, start = mapping.hp_fragment_address, mapping.lp_fragment_address.start
        master = inner.param_groups[group]["params"][0]
        inside = slice(address.start, address.start + address.numel)
    held = {key: value for key, value in inner.state[master].items() if value.dim()} | {"fp32": master}
    held = {key: value.detach().flatten()[inside].float().cpu() for key, value in held.items()}
    held["step"] = torch.full_like(held["fp32"], float(inner.state[master].get("step", 0)))
    own = parameter.detach().flatten()[start : start + held["fp32"].numel()]
    held["model"] = own.float().cpu().clone()
    decay = [g["weight_decay"] for g in inner.param_groups if any(p is master for p in g["params"])]
    held["decay"] = torch.full_like(held["fp32"], decay[0])
    return [(name, tuple(parameter.shape), shard_of(parameter), start, held)]


def _bit16_groups(optimizer: Any) -> list[Any]:
    return optimizer.bf16_groups if hasattr(optimizer, "bf16_groups") else optimizer.bit16_groups


def assert_same_states(found: Any, wanted: Any, way: str) -> None:
    """Bit for bit."""
    assert found.keys() == wanted.keys()
    for name, held in wanted.items():
        for key, value in held.items():
            places = (found[name][key] != value).nonzero().flatten().tolist()
            assert not places, f"{way}: {key} of {name} differs in {len(places)} places from {places[0]} on"


def disturb(engine: Any) -> None:
    """Give the model other weights, so that only a load can have brought the right ones."""
    with torch.no_grad():
        for parameter in engine.module.parameters():
            parameter.add_(1.0)


def unbroken(case: Case) -> list[float]:
    """The losses of four steps in one process in plain torch."""
    model = Whole(case)
    optimizer = make_optimizer(grouped(model), case)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        total = 0.0
        for ids, labels in replace(case, micro_batches=MICRO_BATCHES).batches(step):
            loss = loss_fn(model(ids), labels) / MICRO_BATCHES
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip or float("inf"))
        optimizer.step()
        losses.append(total)
    return losses


def carry(backend: str, case: Case, ways: list[tuple[Layout, Layout]], directory: str) -> None:
    """Two steps at one layout, saved; loaded at another: its state to the bit, and two more steps."""
    wanted = unbroken(case)
    for number, (before, after) in enumerate(ways):
        tag = f"way{number}"
        first = engine_at(case, before, backend)
        losses = go_on(case, first, range(2))
        first.save_checkpoint(directory, tag=tag, client_state={"note": [1, "two"]})
        states, scale = states_of(first), scale_of(first)
        first.destroy()
        if after.universal:
            if dist.get_rank() == 0:
                convert(Path(directory, tag), Path(directory, f"{tag}_universal"))
            dist.barrier()
        second = engine_at(case, after, backend)
        disturb(second)
        path, client = second.load_checkpoint(directory)
        assert Path(path).parent.name.removesuffix("_universal") == tag, "latest names it"
        assert client["note"] == [1, "two"]
        assert (second.global_steps, second.global_samples) == (2, 2 * second.train_batch_size())
        if case.precision == "fp16":
            assert scale_of(second) == scale, (scale_of(second), scale)
        found = states_of(second)
        if before.precision != after.precision:  # the model's own weights are rounded otherwise
            states, found = ({name: {**each, "model": each["fp32"]} for name, each in held.items()}
                             for held in (states, found))  # fmt: skip
        assert_same_states(found, states, f"{before} → {after}")
        losses += go_on(case, second, range(2, 4))
        check_losses(case, losses, wanted, f"{before} → {after}")
        second.destroy()


def check_losses(case: Case, losses: list[float], wanted: list[float], way: str) -> None:
    """Those of the unbroken run."""
    bound = 1e-6 if case.precision == "fp32" else 2e-2
    worst = max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True))
    assert worst < bound, f"{way}: losses {losses} are not {wanted}"


def scale_of(engine: Any) -> tuple[Any, ...]:
    """The state of a dynamic loss scale."""
    scaler = getattr(engine.optimizer, "loss_scaler", getattr(engine.optimizer, "loss_scale_config", None))
    return tuple(getattr(scaler, name, None) for name in ("cur_scale", "cur_iter", "last_overflow_iter"))


def convert(source: Path, target: Path) -> None:
    """Run DeepSpeed's converter, in this process."""
    from deepspeed.checkpoint import ds_to_universal

    arguments = argparse.Namespace(
        input_folder=str(source),
        output_folder=str(target),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=False,
    )
    ds_to_universal.main(arguments)


def stock_engine(case: Case, stages: int, backend: str) -> Any:
    """Build DeepSpeed's own pipeline engine for the same layers."""
    if backend == "gloo":
        use_cpu()
    import deepspeed
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.engine import PipelineEngine

    config = case_at(case, Layout(stages, zero=case.zero)).ds_config(dist.get_world_size() // stages)
    config.pop("pipeline")
    model = PipelineModule(layers(case), num_stages=stages, loss_fn=loss_fn, partition_method="uniform")
    optimizer = make_optimizer(grouped(model), case)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    assert type(engine) is PipelineEngine
    return engine


def from_stock(backend: str, case: Case, after: list[Layout], directory: str) -> None:
    """DeepSpeed's own engine saves, ours goes on as that would."""
    wanted = unbroken(case)
    first = stock_engine(case, 2, backend)
    losses = go_on(case, first, range(2))
    first.save_checkpoint(directory, tag="stock")
    states = states_of(first)
    first.destroy()
    for at in after:
        second = engine_at(case, at, backend)
        disturb(second)
        second.load_checkpoint(directory)
        assert_same_states(states_of(second), states, f"stock → {at}")
        further = losses + go_on(case, second, range(2, 4))
        check_losses(case, further, wanted, f"stock → {at}")
        second.destroy()


def to_stock(backend: str, case: Case, directory: str) -> None:
    """Ours saves with one stage a rank, DeepSpeed's own engine goes on."""
    wanted = unbroken(case)
    first = engine_at(case, Layout(2, "zb-h1", zero=case.zero), backend)
    losses = go_on(case, first, range(2))
    first.save_checkpoint(directory, tag="ours")
    states = states_of(first)
    first.destroy()
    second = stock_engine(case, 2, backend)
    disturb(second)
    second.load_checkpoint(directory)
    assert_same_states(states_of(second), states, "ours → stock")
    losses += go_on(case, second, range(2, 4))
    check_losses(case, losses, wanted, "ours → stock")
    second.destroy()


def seeds_and_rates(backend: str, directory: str) -> None:
    """Dropout under seed_layers and the learning rate's schedule go on, from files of the older format."""
    pipeline = {"partition": "uniform", "seed_layers": True}
    rates = {"warmup_num_steps": 8, "warmup_max_lr": 0.01, "warmup_type": "linear"}

    def engine(stages: int, schedule: str) -> Any:
        extra = {
            "pipeline": {**pipeline, "schedule": schedule},
            "scheduler": {"type": "WarmupLR", "params": rates},
            "checkpoint": {"checkpoint_serialization": False},
        }
        case = Case(schedule, tied=True, dropout=0.3, extra=tuple(extra.items()))
        return engine_at(case, Layout(stages, schedule), backend)

    case = Case(tied=True)
    unbroken = engine(2, "1f1b")
    wanted = go_on(case, unbroken, range(4))
    unbroken.destroy()
    first = engine(2, "1f1b")
    losses = go_on(case, first, range(2))
    first.save_checkpoint(directory)
    first.destroy()
    second = engine(2, "zb-v")
    second.load_checkpoint(directory)
    losses += go_on(case, second, range(2, 4))
    check_losses(case, losses, wanted, "with seeds")
    assert second.lr_scheduler.last_batch_iteration == 3
    second.destroy()
