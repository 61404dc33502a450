"""Checkpoints that are not whole, saves that are cut off, and what cannot be loaded: run on two ranks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from npu_plugins.checkpoint import CheckpointError
from npu_plugins.checkpoint.manifest import MANIFEST_FILE
from tests.pipeline.layout_cases import Layout, disturb, engine_at, go_on, states_of, stock_engine
from tests.pipeline.models import Case


class Evil:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@contextmanager
def copy_of(directory: Path, change: Callable[[Path], object]) -> Iterator[Path]:
    """A copy of a checkpoint, damaged by the first rank."""
    copy = directory.with_name("copy")
    if dist.get_rank() == 0:
        shutil.copytree(directory, copy)
        change(copy)
    dist.barrier()
    yield copy
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(copy)
    dist.barrier()


def cut(name: str) -> Callable[[Path], object]:
    """Cut a file in half."""
    return lambda copy: os.truncate(copy / name, (copy / name).stat().st_size // 2)


def gone(name: str) -> Callable[[Path], object]:
    """Remove a file."""
    return lambda copy: (copy / name).unlink()


def flipped(name: str) -> Callable[[Path], object]:
    """Change one bit in the middle of a file."""

    def change(copy: Path) -> None:
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)

    return change


def without_manifest(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """Damage a checkpoint that has no manifest, as DeepSpeed's own have none."""

    def both(copy: Path) -> None:
        (copy / MANIFEST_FILE).unlink()
        change(copy)

    return both


def damaged(backend: str, directory: str) -> None:
    """A file is missing, cut short or hostile: every rank names it, and nothing has been loaded."""
    case = Case(tied=True, steps=2)
    engine = engine_at(case, Layout(2, zero=1), backend)
    go_on(case, engine, range(1))
    engine.save_checkpoint(directory, tag="good")
    good = Path(directory, "good")
    disturb(engine)
    before = states_of(engine)

    def refused(words: str, change: Callable[[Path], object]) -> None:
        with copy_of(good, change), pytest.raises(CheckpointError, match=words):
            engine.load_checkpoint(directory, tag="copy")
        after = states_of(engine)
        for name, held in before.items():
            assert all(torch.equal(value, after[name][key]) for key, value in held.items()), name

    for name in ("layer_00", "layer_05"):
        file = f"{name}-model_states.pt"
        words = rf"rank \d: .*copy/{file} \(\d+ bytes\) is no whole file of torch.save.*cut short"
        refused(words, without_manifest(cut(file)))
        refused(f"copy/{file} is missing", without_manifest(gone(file)))
        refused(rf"copy is damaged: {file} has \d+ bytes, not \d+: it was cut short", cut(file))
        refused(f"copy is damaged: {file} has another content than was saved", flipped(file))
    for file in ("mp_rank_01_model_states.pt", "zero_pp_rank_0_mp_rank_01_optim_states.pt"):
        refused(f"copy/{file} .*cut short", without_manifest(cut(file)))
        refused(f"copy/{file} is missing", without_manifest(gone(file)))
        refused(f"copy is damaged: {file} is missing; .*delete its {MANIFEST_FILE}", gone(file))
    trap = Path(directory, "trap")
    hostile = {"x": torch.zeros(1), "y": Evil(str(trap))}
    refused(
        "layer_03-model_states.pt holds more than tensors and plain values.*add_safe_globals",
        without_manifest(lambda copy: torch.save(hostile, copy / "layer_03-model_states.pt")),
    )
    assert not trap.exists()
    other = {"norm.weight": torch.zeros(3)}
    refused(
        r"layer 3 in .* lacks .*up.weight.*load_module_strict=False",
        without_manifest(lambda copy: torch.save(other, copy / "layer_03-model_states.pt")),
    )
    engine.load_checkpoint(directory, tag="good")
    assert engine.global_steps == 1
    engine.destroy()


def fails_at(save: Any, number: int) -> Any:
    """A function that saves, but for one file, at which the disk is full."""
    written: list[str] = []

    def saves(state_dict: Any, path: str) -> None:
        if len(written) == number:
            Path(path).write_bytes(b"half a fi")
            raise OSError(28, "No space left on device", path)
        save(state_dict, path)
        written.append(path)

    return saves


def cut_off(backend: str, directory: str) -> None:
    """Whichever file a save fails at, on whichever rank: the last good checkpoint is still what is loaded."""
    case = Case(tied=True, steps=4)
    engine = engine_at(case, Layout(2, zero=1), backend)
    go_on(case, engine, range(1))
    engine.save_checkpoint(directory, tag="last")
    good = states_of(engine)
    go_on(case, engine, range(1, 2))
    save = engine.checkpoint_engine.save
    for rank, failing in ((0, 0), (1, 1), (1, 4), (0, 5)):
        engine.checkpoint_engine.save = fails_at(save, failing if dist.get_rank() == rank else -1)
        words = rf"last was not saved in .*: rank {rank}: OSError: .*No space left .*; make room"
        with pytest.raises(CheckpointError, match=words):
            engine.save_checkpoint(directory, tag="last")
        engine.checkpoint_engine.save = save
        assert not list(Path(directory).glob(".*")), "what was half written is gone"
        loads(engine, directory, good)
        go_on(case, engine, range(1, 2))
    if dist.get_rank() == 0:  # what a killed process leaves
        Path(directory, ".tmp-last").mkdir()
    dist.barrier()
    engine.save_checkpoint(directory, tag="last")
    latest = states_of(engine)
    disturb(engine)
    loads(engine, directory, latest)
    if dist.get_rank() == 0:  # as if the crash had come when the old one had stepped aside
        Path(directory, "last").rename(Path(directory, ".old-last"))
    dist.barrier()
    disturb(engine)
    loads(engine, directory, latest)
    engine.save_checkpoint(directory, tag="last")
    assert sorted(path.name for path in Path(directory).iterdir() if path.is_dir()) == ["last"]
    engine.destroy()


def loads(engine: Any, directory: str, wanted: Any) -> None:
    """What ``latest`` names is that state."""
    engine.load_checkpoint(directory)
    found = states_of(engine)
    for name, held in wanted.items():
        assert all(torch.equal(value, found[name][key]) for key, value in held.items()), name
    dist.barrier()


def refused(backend: str, directory: str) -> None:
    """What cannot be saved or loaded is refused in a sentence on every rank."""
    case = Case(steps=2)
    engine = engine_at(case, Layout(2), backend)
    go_on(case, engine, range(1))
    assert engine.load_checkpoint(directory) == (None, None)
    for words, wanted in (
        ("write files in ways of their own", {"writer": {"type": "PYTHON"}}),
        ("read each other's files", {"use_node_local_storage": True}),
    ):
        with pytest.raises(CheckpointError, match=words):
            engine_at(replace(case, extra=(("checkpoint", wanted),)), Layout(2), backend)
    with pytest.raises(CheckpointError, match="holds more than tensors.*Evil|mkdir.*add_safe_globals"):
        engine.save_checkpoint(directory, tag="evil", client_state={"note": Evil(directory)})
    with pytest.raises(CheckpointError, match="the ranks save under different tags, at0, at1"):
        engine.save_checkpoint(directory, tag=f"at{dist.get_rank()}")
    for tag in ("", "../up", "/abs", ".hidden"):
        with pytest.raises(CheckpointError, match="is no name of a directory"):
            engine.save_checkpoint(directory, tag=tag)
    assert not Path(directory, "latest").exists(), "nothing was saved"
    with pytest.raises(CheckpointError, match="round_robin_gradients is true with several replicas"):
        engine_at(case, Layout(1, zero=1, options=(("round_robin_gradients", True),)), backend)
    engine.save_checkpoint(directory, tag="good")
    with pytest.raises(CheckpointError, match="nowhere is no checkpoint; of .* there are .*good"):
        engine.load_checkpoint(directory, tag="nowhere")
    engine.destroy()

    def told(words: str, other: Case, at: Layout, tag: str = "good", **options: Any) -> None:
        engine = engine_at(other, at, backend)
        with pytest.raises(CheckpointError, match=words):
            engine.load_checkpoint(directory, tag=tag, **options)
        engine.destroy()

    told("is no universal folder; set .*false", case, Layout(2, universal=True))
    told("has 8 layers, but this model has 9; build the same layers", replace(case, blocks=7), Layout(2))
    told("of an optimizer with betas, but SGD has momentum", replace(case, optimizer="SGD"), Layout(1))
    rated = replace(case, extra=(("scheduler", {"type": "WarmupLR", "params": {}}),))
    told("no learning-rate scheduler's state.*load_lr_scheduler_states=False", rated, Layout(2))
    stock = stock_engine(case, 2, backend)
    go_on(case, stock, range(1))
    stock.save_checkpoint(directory, tag="stock")
    stock.destroy()
    told("by position, at pp 2 × tp 1; load it at that layout", case, Layout(1), "stock")


def rounded_master_weights(backend: str, directory: str) -> None:
    """ZeRO's load_from_fp32_weights false makes master weights of the model's own."""
    case = Case(tied=True, precision="bf16")
    at = Layout(2, zero=1, options=(("load_from_fp32_weights", False),))
    engine = engine_at(case, at, backend)
    go_on(case, engine, range(2))
    engine.save_checkpoint(directory)
    saved = states_of(engine)
    engine.load_checkpoint(directory)
    for name, held in states_of(engine).items():
        assert torch.equal(held["fp32"], held["model"]) and torch.equal(held["model"], saved[name]["model"])
        assert torch.equal(held["exp_avg"], saved[name]["exp_avg"])
    engine.destroy()


def parts_of_it(backend: str, directory: str) -> None:
    """Weights alone, and weights without the optimizer's state, of both precisions."""
    for precision in ("fp32", "bf16"):
        case = Case(tied=True, precision=precision)
        engine = engine_at(case, Layout(2), backend)
        go_on(case, engine, range(2))
        engine.save_checkpoint(directory, tag=precision)
        states = states_of(engine)
        engine.destroy()
        for options in ({"load_module_only": True}, {"load_optimizer_states": False}):
            second = engine_at(case, Layout(1, zero=1), backend)
            disturb(second)
            second.load_checkpoint(directory, tag=precision, **options)
            assert second.global_steps == (0 if "load_module_only" in options else 2)
            found = states_of(second) if precision == "bf16" else {}
            for name, held in found.items():
                assert torch.equal(held["model"], states[name]["model"]), "the weights are loaded"
                assert torch.equal(held["fp32"], held["model"]), "and are the master weights"
                assert not held.get("exp_avg", torch.zeros(1)).any(), "the optimizer begins anew"
            for name, parameter in second.module.named_parameters():
                assert torch.equal(parameter.float().cpu(), states[name]["model"].view_as(parameter))
            second.destroy()
