"""What ranks of a pipeline run in tests, and the comparison with one process."""

from __future__ import annotations

from typing import Any

import torch

from tests.pipeline.models import Case, Record, layers, loss_fn, make_optimizer

BOUNDS = {"fp32": 1e-6, "bf16": 2e-2, "fp16": 2e-2}


def use_cpu() -> None:
    """Let DeepSpeed, which the pool imported for NPUs, work on the CPU in this rank."""
    import deepspeed

    # Before the accelerator is the CPU: DeepSpeed would compile its shared-memory collectives for that.
    deepspeed.init_distributed("gloo")
    from deepspeed.accelerator import set_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    set_accelerator(CPU_Accelerator())


def make_engine(case: Case, backend: str, stages: int, plain_initialize: bool = True, **module: Any) -> Any:
    """Build the pipeline of a case on this rank."""
    if backend == "gloo":
        use_cpu()
    import deepspeed

    import npu_plugins
    from npu_plugins.pipeline.engine import PipelineEngine
    from npu_plugins.pipeline.module import PipelineModule

    deepspeed.init_distributed(backend)
    config = case.ds_config(torch.distributed.get_world_size() // stages)
    model = PipelineModule(layers(case), num_stages=stages, loss_fn=loss_fn, config=config, **module)
    optimizer = make_optimizer(model.parameters(), case)
    initialize = deepspeed.initialize if plain_initialize else npu_plugins.initialize
    engine, *_ = initialize(model=model, optimizer=optimizer, config=config)
    assert type(engine) is PipelineEngine
    return engine


def train(case: Case, backend: str, stages: int, **module: Any) -> Record:
    """On a rank: train, and return what this rank saw and holds."""
    from npu_plugins.pipeline.gradients import gradient_of

    engine = make_engine(case, backend, stages, **module)
    record = Record([], [], {}, {})
    step = engine._exec_optimizer_step

    def recording() -> None:
        if not record.gradients:
            record.gradients = {
                name: gradient_of(engine, p).detach().cpu().reshape(p.shape).clone()
                for name, p in engine.module.named_parameters()
                if p.requires_grad
            }
        step()

    engine._exec_optimizer_step = recording
    for number in range(case.steps):
        record.losses.append(engine.train_batch(case.batches(number, engine.mesh.rank("dp"))).item())
        norm = engine.get_global_grad_norm()
        record.norms.append(None if norm is None else float(norm))
    for name, parameter in engine.module.named_parameters():
        record.parameters[name] = parameter.detach().float().cpu().clone()
    engine.destroy()
    return record


def relative(found: torch.Tensor, wanted: torch.Tensor, least: float = 0.0) -> float:
    """The norm of the difference, in units of what is wanted, or of `least` in every element."""
    unit = max(wanted.float().norm().item(), least * wanted.numel() ** 0.5, 1e-12)
    return (found.float() - wanted.float()).norm().item() / unit


def compare(records: list[Record], whole: Record, case: Case, way: float = 0.0) -> None:
    """Assert that all ranks together trained like one process.

    `way`: how far an element can have come; parameters that began as zero are measured by it, if given.
    """
    bound = BOUNDS[case.precision]
    names = {name for record in records for name in record.parameters}
    assert names == set(whole.parameters), "every parameter is somewhere"
    for record in records:
        worst = max(abs(a - b) / abs(b) for a, b in zip(record.losses, whole.losses, strict=True))
        assert worst <= bound, f"losses {record.losses} are not {whole.losses}"
        for name, parameter in record.parameters.items():
            assert relative(parameter, whole.parameters[name], way) <= bound, (
                f"{name} after {case.steps} steps"
            )
        if case.precision != "fp16" and case.zero == 0:
            for name, gradient in record.gradients.items():
                assert relative(gradient, whole.gradients[name]) <= bound, f"gradient of {name}"
            assert set(record.gradients) == set(record.parameters) & set(whole.gradients)
        for found, wanted in zip(record.norms, whole.norms, strict=True):
            assert wanted is not None
            assert found is None or abs(found - wanted) <= 10 * bound * wanted, f"{found} for {wanted}"
