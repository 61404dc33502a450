"""What one rank measures: the allocator's peak inside a training step, and what is there between parts."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from accuracy.case import Case
from accuracy.models import pipeline_model, plain_model

WARM_UP_STEPS = 2
"""The first step makes Adam's moments, the second the trace that ZeRO-3 prefetches by."""


def measure(case: Case) -> dict[str, Any]:
    """Train ``case`` and return the peak of a step after warming up, in bytes, and DeepSpeed's own
    estimate."""
    torch.manual_seed(0)
    deepspeed.init_distributed("hccl")  # a PipelineModule asks for it before there is an engine
    with tempfile.TemporaryDirectory(prefix="memory-accuracy-") as folder:
        engine = _engine(case, folder)
        for _ in range(WARM_UP_STEPS):
            _step(engine, case, {})
        device = get_accelerator()
        gc.collect()
        device.synchronize()
        device.empty_cache()
        device.reset_peak_memory_stats()
        marks: dict[str, list[int]] = {}
        before = device.memory_allocated()
        _step(engine, case, marks)
        device.synchronize()
        return {
            "peak": device.max_memory_allocated(),
            "reserved": device.max_memory_reserved(),
            "before": before,
            "marks": marks,
            "stage": engine.stage_id if case.pp > 1 else 0,
            "parameters": _own_parameters(engine),
            "deepspeed": _deepspeed_estimate(engine, case),
        }


def _engine(case: Case, folder: str) -> Any:
    model = pipeline_model(case) if case.pp > 1 else plain_model(case)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=parameters, config=case.ds_config(folder)
    )  # fmt: skip
    return engine


def _step(engine: Any, case: Case, marks: dict[str, list[int]]) -> None:
    if case.pp > 1:
        engine.train_batch(_batches(case, engine.device))
        return
    batches = _batches(case, engine.device)
    for _ in range(case.accumulation):
        ids, labels = next(batches)
        output = engine(input_ids=ids, labels=labels, use_cache=False)
        _mark(marks, "forward")
        engine.backward(output.loss)
        _mark(marks, "backward")
        engine.step()
        _mark(marks, "step")


def _batches(case: Case, device: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        ids = torch.randint(0, case.vocab, (case.micro_batch, case.sequence)).to(device)
        yield ids, ids


def _mark(marks: dict[str, list[int]], name: str) -> None:
    """Note what is allocated now and the peak since the last mark; the step's peak stays the highest of
    them."""
    device = get_accelerator()
    device.synchronize()
    marks.setdefault(name, []).append(device.memory_allocated())
    marks.setdefault(f"peak of {name}", []).append(device.max_memory_allocated())


def _own_parameters(engine: Any) -> int:
    return sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters())


def _deepspeed_estimate(engine: Any, case: Case) -> int | None:
    """Return what DeepSpeed's own estimator says, in bytes; it knows stages 2 and 3 only."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    total = _own_parameters(engine)
    offload = case.offload_optimizer != "none"
    if case.stage == 2:
        return estimate_zero2_model_states_mem_needs(total, case.dp, 1, offload, 1.5)[1]
    if case.stage == 3:
        largest = max(
            sum(getattr(p, "ds_numel", p.numel()) for p in module.parameters(recurse=False))
            for module in engine.module.modules()
        )
        return estimate_zero3_model_states_mem_needs(
            total, largest, case.dp, 1, offload, case.offload_param != "none", True, 1.5
        )[1]
    return None


def measure_case(fields: dict[str, Any]) -> dict[str, Any]:
    """As `measure`, for the fields of a Case: what the harness sends to a rank."""
    return measure(Case(**fields))
