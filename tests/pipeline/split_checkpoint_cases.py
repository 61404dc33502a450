"""Hugging Face models in stages, saved at one tp and pp and loaded at another: what ranks run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.pipeline.layout_cases import convert, disturb
from tests.pipeline.running import use_cpu
from tests.pipeline.three_axes_cases import from_first
from tests.pipeline.three_axes_models import Run, train_plain


@dataclass(frozen=True)
class Split:
    """Where a model is cut."""

    tp: int
    pp: int
    schedule: str = "1f1b"
    zero: int = 0
    universal: bool = False


def engine_at(run: Run, at: Split, backend: str) -> Any:
    """Split the model and make its engine."""
    if backend == "gloo":
        use_cpu()
    import deepspeed

    import npu_plugins
    from ds_configs.parallel import ParallelConfig
    from npu_plugins.comm import ProcessMesh
    from npu_plugins.pipeline import split_model

    deepspeed.init_distributed(backend)
    mesh = ProcessMesh.create(ParallelConfig.of_world(dist.get_world_size(), tp=at.tp, pp=at.pp))
    config = replace(run, schedule=at.schedule, zero=at.zero).ds_config(mesh.size("dp"))
    config["checkpoint"] = {"load_universal": at.universal}
    module = split_model(run.whole(), mesh=mesh, config=config)
    optimizer = run.make_optimizer(module.parameters())
    return npu_plugins.initialize(model=module, optimizer=optimizer, config=config)[0]


def train(run: Run, engine: Any, steps: range) -> list[float]:
    """Return the losses of these steps."""
    return [engine.train_batch(run.batches(step, 0)).item() for step in steps]


def carry(backend: str, ways: Sequence[tuple[str, Split, Split]], directory: str) -> None:
    """Two steps, saved; loaded at the other split; two more, as one process of transformers' trains."""
    for number, (family, before, after) in enumerate(ways):
        run, tag = Run(family, optimizer="AdamW", steps=4), f"way{number}"
        first = engine_at(run, before, backend)
        wanted = from_first(first.mesh, lambda run=run: train_plain(run, 1)).losses
        losses = train(run, first, range(2))
        first.save_checkpoint(directory, tag=tag)
        first.destroy()
        if after.universal:
            if dist.get_rank() == 0:
                convert(Path(directory, tag), Path(directory, f"{tag}_universal"))
            dist.barrier()
        second = engine_at(run, after, backend)
        disturb(second)
        second.load_checkpoint(directory)
        losses += train(run, second, range(2, 4))
        second.destroy()
        worst = max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True))
        assert worst < 1e-5, f"{family} {before} → {after}: {losses} are not {wanted}"
