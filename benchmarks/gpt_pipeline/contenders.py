"""The pipelines that are compared, each under the schedules it has, and the floor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gpt_pipeline.case import (
    CUTS,
    LAYERS,
    LENGTH,
    MICRO_BATCHES,
    RANKS,
    ROWS,
    WIDTH,
    Layers,
    batch,
    loss_fn,
    micro_batches,
    optimizer_of,
)
from gpt_pipeline.contender import Contender, named


def floor(group: dist.ProcessGroup) -> Contender:
    """This rank's half of the layers on all micro-batches with nothing sent and nobody waited for.

    Where a peer would send, stand numbers of the right shape; so this is what the slower of two ranks
    computes in any case, under every schedule.
    """
    rank = dist.get_rank(group)
    layers = Layers(*CUTS[1][rank : rank + 2])
    optimizer = optimizer_of(layers.parameters())
    arrived = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    batches = micro_batches()

    def step() -> None:
        for ids, labels in batches:
            if rank == 0:
                layers(ids).backward(arrived)
            else:
                loss = loss_fn(layers(arrived.detach().requires_grad_()), labels) / MICRO_BATCHES
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Contender(step, optimizer, named([layers]))


def ds_config() -> dict[str, Any]:
    """The DeepSpeed configuration of ours and of theirs."""
    return {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "steps_per_print": 10**9,
    }


def ours(schedule: str, group: dist.ProcessGroup) -> Contender:
    """npu_plugins' engine: `train_batch`."""
    from deepspeed.pipe import LayerSpec

    import npu_plugins
    from npu_plugins.pipeline.module import PipelineModule
    from npu_plugins.pipeline.schedules.registry import chunks_of

    cut = CUTS[chunks_of(schedule)]
    parts = [stop - start for start, stop in zip(cut, cut[1:], strict=False)]
    config = {**ds_config(), "pipeline": {"stages": RANKS, "schedule": schedule, "partition": parts}}
    module = PipelineModule(
        [LayerSpec(layer, index) for index, layer in enumerate(LAYERS)], loss_fn=loss_fn, config=config
    )
    optimizer = optimizer_of(module.parameters())
    engine = npu_plugins.initialize(model=module, optimizer=optimizer, config=config)[0]
    return _of_engine(engine, module, optimizer)


def deepspeed(schedule: str, group: dist.ProcessGroup) -> Contender:
    """DeepSpeed's own engine: `train_batch`."""
    import deepspeed
    from deepspeed.pipe import DualPipeVModule, LayerSpec, PipelineModule

    kind, chunks = {"1F1B": (PipelineModule, 1), "DualPipeV": (DualPipeVModule, 2)}[schedule]
    module = kind(
        [LayerSpec(layer, index) for index, layer in enumerate(LAYERS)],
        num_stages=RANKS,
        loss_fn=loss_fn,
        partition_method="type:Block",
    )
    if tuple(module.parts) != CUTS[chunks]:
        raise SystemExit(f"DeepSpeed cut the layers at {module.parts}, not at {CUTS[chunks]} as the others")
    optimizer = optimizer_of(module.parameters())
    engine = deepspeed.initialize(model=module, optimizer=optimizer, config=ds_config())[0]
    return _of_engine(engine, module, optimizer)


def _of_engine(engine: Any, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Contender:
    batches = micro_batches()
    return Contender(
        lambda: engine.train_batch(iter(batches)).item(), optimizer, list(module.named_parameters())
    )


def torch_pipelining(schedule: str, group: dist.ProcessGroup) -> Contender:
    """torch.distributed.pipelining: `step` of the schedule, then the optimizer's."""
    from torch.distributed import pipelining

    rank = dist.get_rank(group)
    kind = getattr(pipelining, f"Schedule{schedule}")
    single = schedule in ("GPipe", "1F1B")
    vee = schedule in ("ZBVZeroBubble", "DualPipeV")
    cut = CUTS[1 if single else 2]
    last = len(cut) - 2
    places = [rank] if single else [rank, last - rank] if vee else [rank, rank + RANKS]
    modules = [Layers(*cut[place : place + 2]) for place in places]
    stages = [
        pipelining.PipelineStage(module, place, last + 1, torch.device("cpu"), group=group)
        for module, place in zip(modules, places, strict=True)
    ]
    runner = kind(stages[0] if single else stages, MICRO_BATCHES, loss_fn=loss_fn)
    optimizer = optimizer_of([parameter for module in modules for parameter in module.parameters()])
    ids, labels = batch()
    inputs = (ids,) if 0 in places else ()

    def step() -> float | None:
        losses: list[torch.Tensor] = []
        asked = {"target": labels, "losses": losses} if last in places else {}
        runner.step(*inputs, **asked, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if losses else None

    return Contender(step, optimizer, named(modules))


class Entry:
    """A contender before it is built."""

    def __init__(self, maker: str, schedule: str, kind: str) -> None:
        self.maker, self.schedule, self.kind = maker, schedule, kind
        self.name = f"{maker} {schedule}".strip()

    def build(self, group: dist.ProcessGroup) -> Contender:
        """Build it on this rank; all ranks do so together."""
        makers: dict[str, Callable[[str, dist.ProcessGroup], Contender]] = {
            "ours": ours,
            "DeepSpeed": deepspeed,
            "torch": torch_pipelining,
            "floor": lambda _, group: floor(group),
        }
        return makers[self.maker](self.schedule, group)


ENTRIES = {
    entry.name: entry
    for entry in (
        Entry("floor", "", "floor"),
        Entry("ours", "gpipe", "GPipe"),
        Entry("torch", "GPipe", "GPipe"),
        Entry("torch", "LoopedBFS", "looped BFS"),
        Entry("ours", "1f1b", "1F1B"),
        Entry("DeepSpeed", "1F1B", "1F1B"),
        Entry("torch", "1F1B", "1F1B"),
        Entry("ours", "interleaved", "interleaved"),
        Entry("torch", "Interleaved1F1B", "interleaved"),
        Entry("ours", "zb-h1", "ZB-H1"),
        Entry("torch", "InterleavedZeroBubble", "interleaved ZB"),
        Entry("ours", "zb-v", "ZB-V"),
        Entry("torch", "ZBVZeroBubble", "ZB-V"),
        Entry("ours", "dualpipe-v", "DualPipeV"),
        Entry("DeepSpeed", "DualPipeV", "DualPipeV"),
        Entry("torch", "DualPipeV", "DualPipeV"),
    )
}
"""By name; those of one kind run the same schedule and are compared with each other."""
