"""What ranks run in test_same_batches.py."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.pipeline.models import Case, layers, loss_fn
from tests.pipeline.running import use_cpu


def different_data(backend: str) -> None:
    """One rank of tp 2 × pp 2 reads something else: all say which rank, where and what, and take no step."""
    if backend == "gloo":
        use_cpu()
    import deepspeed

    from ds_configs.parallel import ParallelConfig
    from npu_plugins.comm import ProcessMesh
    from npu_plugins.pipeline.errors import StageError
    from npu_plugins.pipeline.module import PipelineModule

    deepspeed.init_distributed(backend)
    mesh = ProcessMesh.create(ParallelConfig(tp=2, pp=2))
    case = Case()
    model = PipelineModule(layers(case), loss_fn=loss_fn, mesh=mesh, config=case.ds_config())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=case.ds_config())

    def batches(change: Any, on: int) -> Any:
        found = [(ids.clone(), labels.clone()) for ids, labels in case.batches(0)]
        if mesh.global_rank == on:
            change(found)
        return iter(found)

    def token(part: int) -> Any:
        return lambda found: found[2][part].__setitem__((1, 3), 999)

    def order(found: list[Any]) -> None:
        found.reverse()

    ids, labels = list(case.batches(0))[2]
    # Rank 1 is the first stage's second rank; 2 and 3 are the last stage.
    for change, on, words in (
        (
            token(0),
            1,
            "rank 1 (stage 0) at its data: PipelineError: inputs of micro-batch 2: inputs[1, 3] is 999, but "
            f"{ids[1, 3]} on rank 0; all ranks of a replica read the same data: give the sampler",
        ),
        (
            token(1),
            3,
            "rank 3 (stage 1) at its data: PipelineError: labels of micro-batch 2: labels[1, 3] is 999, but "
            f"{labels[1, 3]} on rank 0",
        ),
        (order, 2, "rank 2 (stage 1) at its data: PipelineError: inputs of micro-batch 0: inputs"),
    ):
        with pytest.raises(StageError, match=re.escape(f"step 1 failed on {words}")):
            engine.train_batch(batches(change, on))
        with pytest.raises(StageError, match=re.escape(words)):
            engine.eval_batch(batches(change, on))
    assert engine.global_steps == 0

    def without(found: list[Any]) -> None:  # what is not given is not compared
        first = mesh.rank("pp") == 0
        found[:] = [(ids if first else None, None if first else labels) for ids, labels in found]

    engine.module.train()
    losses = [engine.train_batch(batches(without, on)).item() for on in (0, 1, 2, 3)]
    assert losses == sorted(losses, reverse=True), "training goes on"
    engine.destroy()
