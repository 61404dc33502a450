"""What ranks run in test_three_axes.py."""

from __future__ import annotations

from typing import Any

import torch

from tests.pipeline.running import relative, use_cpu
from tests.pipeline.three_axes_models import Run, Trained, train_plain


def start(backend: str, tp: int, pp: int) -> Any:
    """Return the mesh of a world, of which DeepSpeed knows."""
    if backend == "gloo":
        use_cpu()
    import deepspeed

    from ds_configs.parallel import ParallelConfig
    from npu_plugins.comm import ProcessMesh

    deepspeed.init_distributed(backend)
    world = torch.distributed.get_world_size()
    return ProcessMesh.create(ParallelConfig.of_world(world, tp=tp, pp=pp))


def make_engine(run: Run, mesh: Any, model: Any) -> Any:
    """Split a model and make its engine."""
    import npu_plugins
    from npu_plugins.pipeline import split_model

    config = run.ds_config(mesh.size("dp"))
    module = split_model(model, mesh=mesh, config=config, gather_logits=run.gather_logits)
    optimizer = run.make_optimizer(module.parameters())
    engine, *_ = npu_plugins.initialize(model=module, optimizer=optimizer, config=config)
    return engine


def train(run: Run, mesh: Any, model: Any) -> Trained:
    """Train on this rank; the parameters are this rank's parts."""
    from npu_plugins.pipeline import hf_names

    engine = make_engine(run, mesh, model)
    trained = Trained([], [], {})
    for step in range(run.steps):
        trained.losses.append(engine.train_batch(run.batches(step, mesh.rank("dp"))).item())
        trained.norms.append(float(engine.get_global_grad_norm()))
    names = hf_names(engine.module)
    assert set(names) == {name for name, _ in engine.module.named_parameters()}
    trained.parameters = {names[name]: each for name, each in engine.module.named_parameters()}
    engine.destroy()
    return trained


def compare(run: Run, found: Trained, wanted: Trained, bound: float = 1e-5) -> None:
    """Assert that a rank saw the losses and norms of one process, and holds its parts of the parameters."""
    from npu_plugins.tensor_parallel.filling import take_local
    from npu_plugins.tensor_parallel.shard import shard_of

    for what in ("losses", "norms"):
        these, those = getattr(found, what), getattr(wanted, what)
        worst = max(abs(a - b) / abs(b) for a, b in zip(these, those, strict=True))
        assert worst <= bound, f"{run}: {what} {these} are not {those}"
    for name, parameter in found.parameters.items() if run.optimizer == "SGD" else ():
        # Adam makes something of the gradient of a key's bias, which is nothing but rounding.
        whole = take_local(parameter, wanted.parameters[name])
        away = relative(parameter.detach().cpu(), whole)
        assert away <= bound, f"{run}: {name} is {away} away"
    assert any(shard_of(parameter) is not None for parameter in found.parameters.values())


def from_first(mesh: Any, make: Any) -> Any:
    """Return what `make` returns on the first rank, on all ranks."""
    value = [make() if mesh.global_rank == 0 else None]
    torch.distributed.broadcast_object_list(value, src=0, device=mesh.device)
    return value[0]


def like_one_process(backend: str, tp: int, pp: int, runs: list[Run]) -> None:
    """Train each run on the ranks and, on the first of them, as it is; compare."""
    mesh = start(backend, tp, pp)
    for run in runs:
        wanted = from_first(mesh, lambda run=run: train_plain(run, mesh.size("dp")))
        compare(run, train(run, mesh, run.whole()), wanted, 1e-5 if run.precision == "fp32" else 2e-2)
