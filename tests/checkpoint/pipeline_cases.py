"""What ranks run in test_pipeline_convert.py: checkpoints of the pipeline engine, converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file

from npu_plugins.checkpoint import save_hf
from npu_plugins.checkpoint.convert import convert
from npu_plugins.checkpoint.describe import describe
from npu_plugins.checkpoint.pipelines import PipelineSource
from npu_plugins.checkpoint.verify import verify
from tests.pipeline import layout_cases
from tests.pipeline.layout_cases import Layout, disturb
from tests.pipeline.models import Case
from tests.pipeline.split_checkpoint_cases import Split, engine_at, train
from tests.pipeline.three_axes_cases import start
from tests.pipeline.three_axes_models import Run, train_plain


def on_first(action: Any) -> None:
    """Run on the first rank; the others wait."""
    if dist.get_rank() == 0:
        action()
    dist.barrier()


def to_deepspeed(directory: str) -> None:
    """A tied model, its vocabulary padded, its matrices transposed, becomes files that DeepSpeed loads."""
    run, folder = Run("GPT2", optimizer="AdamW", steps=4), Path(directory)
    engine = engine_at(run, Split(2, 2, zero=1), "gloo")
    losses = train(run, engine, range(2))
    engine.save_checkpoint(directory, tag="step2")
    save_hf(engine.module, engine.mesh, folder / "saved")
    engine.destroy()
    on_first(lambda: check_conversions(folder))
    engine = zero_engine(run, 2)
    disturb(engine)
    engine.load_checkpoint(str(folder / "universal"))
    assert engine.global_steps == 2
    losses += [zero_step(run, engine, step) for step in (2, 3)]
    engine.destroy()
    check_losses(losses, train_plain(run, 1).losses)


def check_conversions(folder: Path) -> None:
    """It is whole and told of as it is; each weight is the bits that `save_hf` gathered."""
    assert verify(folder) == []
    told = describe(folder)
    assert told.kind == "npu_plugins checkpoint with DeepSpeed pipeline"
    assert told.layout == {"tp": 2, "pp": 2, "dp": 1, "ep": 1, "world size": 4, "ZeRO stage": 1}
    assert (told.step, told.model, told.optimizer) == (2, "GPT2LMHeadModel", ["exp_avg", "exp_avg_sq"])
    saved = load_file(folder / "saved" / "model.safetensors")
    assert told.parameters == sum(tensor.numel() for tensor in saved.values())
    made = convert(folder, folder / "hf", "hf")
    assert made.notes == ["only weights are converted: the optimizer's state stays behind"]
    check_same(load_file(folder / "hf" / "model.safetensors"), saved)
    convert(folder, folder / "sharded", "sharded", tp=2, pp=2)
    convert(folder / "sharded", folder / "back", "hf")
    check_same(load_file(folder / "back" / "model.safetensors"), saved)
    assert convert(folder, folder / "universal", "universal").notes == []


def check_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def check_losses(found: list[float], wanted: list[float], bound: float = 1e-5) -> None:
    worst = max(abs(a - b) / b for a, b in zip(found, wanted, strict=True))
    assert worst < bound, f"{found} are not {wanted}"


def zero_engine(run: Run, stage: int) -> Any:
    """DeepSpeed's own engine with as many replicas as there are ranks, each with one micro-batch."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": run.clip,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"load_universal": True},
    }
    model, mesh = run.whole(), start("gloo", 1, 1)  # DeepSpeed remembers the mesh of the engine before
    keywords = {"optimizer": run.make_optimizer(model.parameters()), "mpu": mesh}
    return deepspeed.initialize(model=model, config=config, **keywords)[0]


def zero_step(run: Run, engine: Any, step: int) -> float:
    """Train on the step's micro-batches, one a rank; return the mean loss."""
    batch = list(run.batches(step, 0))[dist.get_rank()]
    loss = engine(**batch).loss
    engine.backward(loss)
    engine.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def half_precision(directory: str) -> None:
    """bf16 with tp 2: every master weight and moment is the same bit for bit, loaded at another tp and pp,
    directly and through a universal folder, and saved again."""
    run, folder = Run("Llama", optimizer="AdamW", precision="bf16", steps=3), Path(directory)
    engine = engine_at(run, Split(2, 2, "zb-v"), "gloo")
    train(run, engine, range(2))
    engine.save_checkpoint(directory, tag="first")
    losses = train(run, engine, range(2, 3))
    engine.destroy()
    on_first(lambda: convert(folder / "first", folder / "universal", "universal"))
    for tag, at, source in (
        ("direct", Split(1, 4), folder),
        ("through", Split(1, 2, zero=1, universal=True), folder / "universal"),
    ):
        engine = engine_at(run, at, "gloo")
        disturb(engine)
        engine.load_checkpoint(str(source), tag=None if source != folder else "first")
        engine.save_checkpoint(directory, tag=tag)
        losses += train(run, engine, range(2, 3))
        engine.destroy()
        on_first(lambda tag=tag: check_same_states(folder / "first", folder / tag))
    check_losses(losses, [losses[0]] * 3, 1e-3)


def check_same_states(one: Path, other: Path) -> None:
    """Whole tensors are the same bits, whatever the layouts."""
    first, second = PipelineSource(one), PipelineSource(other)
    assert first.tensors == second.tensors
    assert {info.dtype for info in first.tensors.values()} == {torch.float32}
    for name in first.tensors:
        assert torch.equal(first.read(name), second.read(name)), name
        assert first.moments_of(name) == ["exp_avg", "exp_avg_sq"]
        check_same(dict(second.moments(name)), dict(first.moments(name)))
    assert first.optimizer is not None
    assert second.optimizer is not None
    assert float(first.optimizer.step) == float(second.optimizer.step) == 2.0


def own_layers(directory: str) -> None:
    """Layers that are no Hugging Face model's become universal, and nothing else."""
    case, folder = Case(clip=0.3, optimizer="AdamW"), Path(directory)
    engine = layout_cases.engine_at(case, Layout(2, tp=2, zero=1), "gloo")
    layout_cases.go_on(case, engine, range(2))
    engine.save_checkpoint(directory, tag="own")
    states = layout_cases.states_of(engine)
    engine.destroy()
    on_first(lambda: check_own_layers(folder))
    engine = layout_cases.engine_at(case, Layout(2, zero=1, universal=True), "gloo")
    disturb(engine)
    engine.load_checkpoint(str(folder / "universal"))
    found = layout_cases.states_of(engine)
    for held in (*states.values(), *found.values()):
        held.pop("decay")  # the groups' own, which the engine keeps
    layout_cases.assert_same_states(found, states, "universal")
    engine.destroy()


def check_own_layers(folder: Path) -> None:
    from npu_plugins.checkpoint import CheckpointError

    made = convert(folder / "own", folder / "universal", "universal")
    assert [note.partition(",")[0] for note in made.notes] == ["parameter groups differ in weight_decay"]
    for to in ("hf", "sharded"):
        try:
            convert(folder / "own", folder / to, to)
        except CheckpointError as error:
            assert "is no parameter of a Hugging Face model; convert it to universal" in str(error)
        else:
            raise AssertionError("not refused")
