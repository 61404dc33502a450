"""What ranks run in test_traps.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from tests.pipeline.models import Case, layers, loss_fn, make_optimizer, train_whole
from tests.pipeline.running import make_engine, relative, train, use_cpu


def equal_to_stock_deepspeed(backend: str) -> None:
    """ZB-H1 with tied weights, clipping and ZeRO-1 against DeepSpeed's own engine: three AdamW steps."""
    case = Case("zb-h1", tied=True, clip=0.3, zero=1, steps=3)
    ours = train(case, backend, 2)
    import deepspeed

    model = deepspeed.pipe.PipelineModule(
        layers(case), num_stages=2, loss_fn=loss_fn, partition_method="uniform"
    )
    config = {key: value for key, value in case.ds_config().items() if key != "pipeline"}
    optimizer = make_optimizer(model.parameters(), case)
    stock, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    losses = [stock.train_batch(case.batches(step)).item() for step in range(case.steps)]
    assert max(abs(a - b) / b for a, b in zip(ours.losses, losses, strict=True)) <= 4e-7
    found = dict(stock.module.named_parameters())
    assert set(found) == set(ours.parameters)
    for name, parameter in found.items():
        assert relative(ours.parameters[name], parameter.detach()) <= 4e-7, name
    stock.destroy()


def adam_starts_at_one(backend: str, precision: str, zero: int) -> None:
    """Without ZeRO, DeepSpeed's fp16 optimizer makes a step of zeros when it is built, which Adam counts."""
    case = Case("zb-v", precision=precision, zero=zero, steps=1)
    engine = make_engine(case, backend, 2)
    engine.train_batch(case.batches(0))
    optimizer = engine.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    counts = {float(state["step"]) for state in optimizer.state.values()}
    assert counts == {1.0}
    engine.destroy()


def clipping_counts_all_stages(backend: str) -> None:
    """In fp32 DeepSpeed clips by the norm of the first stage alone; a step of SGD shows it."""
    case = Case("1f1b", clip=0.1, optimizer="SGD", steps=3)
    found, wanted = train(case, backend, 2), train_whole(case)
    assert max(abs(a - b) / b for a, b in zip(found.losses, wanted.losses, strict=True)) < 1e-6
    assert max(abs(a - b) / b for a, b in zip(found.norms, wanted.norms, strict=True)) < 1e-5  # type: ignore[operator]


def seeded_layers_are_cut_by_parameters(backend: str) -> None:
    """DeepSpeed's module cannot have both: a TypeError."""
    from npu_plugins.pipeline.module import PipelineModule

    if backend == "gloo":
        use_cpu()
    model = PipelineModule(
        layers(Case()), num_stages=2, seed_layers=True, partition_method="parameters", loss_fn=loss_fn
    )
    assert model.parts == [0, 4, 8]


def integers_are_recomputed(backend: str) -> None:
    """Recomputing a layer whose input is made of integers; DeepSpeed's checkpoint loses its gradients."""
    case = replace(Case("zb-h1", steps=1), recomputation=1)
    found, wanted = train(case, backend, 2), train_whole(case)
    if "0.weight" in found.gradients:
        assert relative(found.gradients["0.weight"], wanted.gradients["0.weight"]) < 1e-6
    assert set(found.gradients) == set(found.parameters)


def what_is_no_pipeline(backend: str) -> None:
    """Pipelines of models that are none, or with DeepSpeed's AutoTP, are refused, not left out in silence."""
    import deepspeed

    import npu_plugins
    from npu_plugins.pipeline.errors import PipelineError
    from npu_plugins.pipeline.module import PipelineModule

    if backend == "gloo":
        use_cpu()
    config: dict[str, Any] = {"train_batch_size": 2, "pipeline": {"stages": 2}}
    plain = nn.Linear(2, 2)
    with pytest.raises(
        PipelineError, match=r"pipeline.stages is 2.* Linear is no PipelineModule.*split_model"
    ):
        npu_plugins.initialize(model=plain, config=config)
    with pytest.raises(PipelineError, match="layers is a Linear.*split_model"):
        PipelineModule(plain, num_stages=2)
    model = PipelineModule([nn.Linear(2, 2)] * 4, num_stages=2)
    sharded = Case().ds_config() | {"tensor_parallel": {"autotp_size": 2}}
    with pytest.raises(PipelineError, match="tensor_parallel.autotp_size is 2 with a pipeline.*split_model"):
        deepspeed.initialize(model=model, config=sharded)
