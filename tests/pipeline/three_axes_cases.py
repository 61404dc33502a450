"""What ranks run in test_three_axes.py."""

from __future__ import annotations

from typing import Any

import torch

from tests.pipeline.running import relative, use_cpu
from tests.pipeline.three_axes_models import LENGTH, VOCABULARY, Run, Trained, train_plain


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


def dropout(backend: str) -> None:
    """Recomputation repeats it exactly, and the ranks of a tensor-parallel group drop the same."""
    mesh = start(backend, 2, 2)

    def losses(run: Run) -> list[float]:
        model = run.whole()
        torch.manual_seed(5)
        found = train(run, mesh, model).losses
        everyone = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(everyone, found)
        assert all(each == found for each in everyone), everyone
        return found

    (without,) = losses(Run("GPT2", steps=1))
    for schedule in ("1f1b", "zb-v"):
        kept, recomputed = (
            losses(Run("GPT2", schedule=schedule, recomputation=each, steps=2, dropout=0.2))
            for each in ("none", "full")
        )
        assert kept == recomputed and kept[0] != without


def evaluates(backend: str) -> None:
    """Losses and logits are the whole model's; with `gather_logits=False` each rank has its columns."""
    mesh = start(backend, 2, 2)
    for run in (Run("Llama", schedule="zb-v"), Run("GPT2", gather_logits=False)):
        whole = run.whole().eval()
        engine = make_engine(run, mesh, whole)
        batches = list(run.batches(0, mesh.rank("dp")))
        loss, logits = engine.eval_batch(iter(batches), return_logits=True)
        with torch.no_grad():
            outputs = [whole(**batch) for batch in batches]
        wanted = sum(each.loss.item() for each in outputs) / len(outputs)
        assert abs(loss.item() - wanted) <= 1e-5 * wanted
        assert (logits is not None) == engine.is_last_stage()
        for mine, each in zip(logits or [], outputs, strict=False):
            expected = each.logits
            if not run.gather_logits:
                width = mine.shape[-1]  # with padding at the vocabulary's end
                expected = expected[..., mesh.rank("tp") * width :][..., :width]
                mine = mine[..., : expected.shape[-1]]
            torch.testing.assert_close(mine.cpu(), expected, rtol=1e-5, atol=1e-5)
        engine.destroy()


def data_of_deepspeed(backend: str) -> None:
    """`training_data` of initialize: each replica reads its own part, and all its ranks the same."""
    import npu_plugins
    from npu_plugins.pipeline import split_model

    mesh = start(backend, 2, 1)
    run = Run(micro_batches=2, steps=2)
    config = run.ds_config(mesh.size("dp"))
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(VOCABULARY, (LENGTH,), generator=generator) for _ in range(16)]
    data = [{"input_ids": row, "labels": row} for row in rows]
    module = split_model(run.whole(), mesh=mesh, config=config)
    optimizer = run.make_optimizer(module.parameters())
    engine, *_ = npu_plugins.initialize(model=module, optimizer=optimizer, config=config, training_data=data)
    with torch.no_grad():
        ids = torch.stack(rows[:8])
        wanted = run.whole()(input_ids=ids, labels=ids).loss.item()
    assert abs(engine.train_batch().item() - wanted) <= 1e-5 * wanted
    engine.destroy()


def worlds_that_do_not_divide(backend: str) -> None:
    """Degrees whose product is not the number of ranks are refused with the arithmetic."""
    import pytest

    from ds_configs.errors import DsConfigError
    from ds_configs.parallel import ParallelConfig
    from npu_plugins.comm import CommError, ProcessMesh
    from npu_plugins.pipeline import split_model

    start(backend, 1, 1)
    config = Run().config()
    with pytest.raises(DsConfigError, match=r"tp=1 × pp=3 does not divide 4 ranks: it needs 3 or a multiple"):
        split_model(config, 3)
    with pytest.raises(DsConfigError, match=r"tp=3 × pp=2 does not divide 4 ranks: it needs 6 or a multiple"):
        ParallelConfig.of_world(4, tp=3, pp=2)
    with pytest.raises(
        CommError, match=r"--num_gpus 4 with tp 3 × pp 2 needs 6 ranks; .* whose product divides 4"
    ):
        ProcessMesh.create(ParallelConfig(tp=3, pp=2))
    with pytest.raises(CommError, match=r"tp 2 × pp 2 × dp 2 needs 8 ranks; start as many, or take dp 1"):
        ProcessMesh.create(ParallelConfig(tp=2, pp=2, dp=2))
