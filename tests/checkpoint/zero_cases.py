"""What ranks run in test_zero_convert.py: training with DeepSpeed, and its checkpoints converted."""

from __future__ import annotations

import argparse
import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.checkpoint.convert import convert
from npu_plugins.checkpoint.describe import describe
from npu_plugins.checkpoint.kinds import Kind, recognise
from npu_plugins.checkpoint.torch_files import DEEPSPEED_CLASSES
from npu_plugins.checkpoint.training import TrainingSource
from npu_plugins.checkpoint.universal import UniversalSource
from npu_plugins.checkpoint.verify import verify
from npu_plugins.checkpoint.zero import ZeroSource
from tests.pipeline.running import use_cpu
from tests.tensor_parallel.models import Case, make_model

TAG = "global_step2"


@dataclass(frozen=True)
class Zero:
    """One way to train."""

    stage: int
    precision: str
    then: int
    """The stage that goes on from the universal checkpoint."""
    tied: bool = False
    frozen: bool = False


def model_of(case: Zero) -> Any:
    """A model; the embedding is tied or frozen."""
    model = make_model(Case("llama", "LlamaConfig", {"tie_word_embeddings": case.tied}))
    model.config.use_cache = False
    if case.frozen:
        model.get_input_embeddings().weight.requires_grad_(False)
    return model


def engine_of(case: Zero, stage: int, backend: str, universal: bool = False) -> Any:
    """An engine with two parameter groups."""
    if backend == "gloo":
        use_cpu()
    import deepspeed

    deepspeed.init_distributed(backend)
    model = model_of(case)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"load_universal": universal},
    }
    if case.precision != "fp32":
        config[case.precision] = {"enabled": True}
    if case.precision == "fp16":
        config["fp16"]["initial_scale_power"] = 8  # no step is left out
    norms = [p for name, p in model.named_parameters() if p.requires_grad and "norm" in name]
    others = [p for name, p in model.named_parameters() if p.requires_grad and "norm" not in name]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def step(engine: Any, number: int) -> float:
    """One step on a batch that depends on its number and the rank; returns the mean loss."""
    chance = torch.Generator().manual_seed(10 * number + dist.get_rank())
    ids = torch.randint(3, 60, (1, 8), generator=chance).to(engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    mean = loss.detach().float()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def round_trip(backend: str, case: Zero, directory: str) -> None:
    """Train and save; convert; train on from what was converted."""
    folder = Path(directory, f"{backend}-{case.stage}-{case.precision}")
    engine = engine_of(case, case.stage, backend)
    for number in range(2):
        step(engine, number)
    engine.save_checkpoint(str(folder / "ds"), tag=TAG)
    losses = [step(engine, number) for number in (2, 3)]
    if dist.get_rank() == 0:
        model_of(case).config.save_pretrained(folder / "ds")
        check_files(folder, case)
        check_weights(folder, case)
        check_universal(folder, case)
    dist.barrier()
    engine.destroy()
    again = engine_of(case, case.then, backend, universal=True)
    again.load_checkpoint(str(folder / "u"))
    assert again.global_steps == 2
    found = [step(again, number) for number in (2, 3)]
    bound = 1e-5 if case.precision == "fp32" else 2e-2
    worst = max(abs(a - b) / b for a, b in zip(found, losses, strict=True))
    assert worst < bound, (case, found, losses)
    again.destroy()


def check_files(folder: Path, case: Zero) -> None:
    """All files are whole, and name no class that is not allowed."""
    assert verify(folder / "ds") == []
    named: set[str] = set()
    for file in (folder / "ds" / TAG).glob("*.pt"):
        named |= set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    assert named <= set(DEEPSPEED_CLASSES), named
    told = describe(folder / "ds")
    assert told.layout == {"tp": 1, "pp": 1, "dp": 2, "ZeRO stage": case.stage}
    assert (told.step, told.optimizer) == (2, ["exp_avg", "exp_avg_sq"])


def check_weights(folder: Path, case: Zero) -> None:
    """They are the bits that DeepSpeed's own zero_to_fp32 makes of them."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from safetensors.torch import load_file

    with contextlib.redirect_stdout(io.StringIO()):
        theirs = get_fp32_state_dict_from_zero_checkpoint(str(folder / "ds"))
    made = convert(folder / "ds", folder / "hf", "hf")
    assert made.notes == ["only weights are converted: the optimizer's state stays behind"]
    ours = load_file(folder / "hf" / "model.safetensors")
    assert set(theirs) - set(ours) == ({"lm_head.weight"} if case.tied else set())
    for name, tensor in ours.items():
        frozen = case.frozen and "embed" in name
        assert tensor.dtype == torch.float32 or frozen, name
        assert torch.equal(tensor, theirs[name]), name
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32).state_dict()
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in ours.items())


def check_universal(folder: Path, case: Zero) -> None:
    """It holds the bits that DeepSpeed's own ds_to_universal makes."""
    from deepspeed.checkpoint.ds_to_universal import main

    made = convert(folder / "ds", folder / "u", "universal")
    assert made.notes == []
    assert verify(folder / "u") == []
    options = argparse.Namespace(
        input_folder=str(folder / "ds" / TAG),
        output_folder=str(folder / "theirs" / TAG),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(options)
    assert recognise(folder / "theirs") == (Kind.UNIVERSAL, folder / "theirs" / TAG)
    theirs, ours = UniversalSource(folder / "theirs" / TAG), UniversalSource(folder / "u" / "universal")
    source = ZeroSource(folder / "ds" / TAG)
    assert ours.tensors.keys() == source.tensors.keys()
    for name in ours.tensors:
        if case.frozen and "embed" in name:  # DeepSpeed's stage 3 leaves it out
            assert not ours.moments(name)
            continue
        assert torch.equal(ours.read(name), theirs.read(name)), name
        wanted, found = theirs.moments(name), ours.moments(name)
        assert found.keys() == wanted.keys() == {"exp_avg", "exp_avg_sq"}
        assert all(torch.equal(found[key], wanted[key]) for key in wanted), name
    check_training(folder, source, case)
    mine, their = ours.optimizer, theirs.optimizer
    assert mine is not None
    assert their is not None
    assert float(mine.step) == float(their.step) == 2.0
    assert len(mine.groups) == len(their.groups) == 2
    assert all(
        a["lr"] == b["lr"] and a["betas"] == b["betas"]
        for a, b in zip(mine.groups, their.groups, strict=True)
    )


def check_training(folder: Path, source: ZeroSource, case: Zero) -> None:
    """The Trainer's form has the same bits, the loss scale, and what the Trainer keeps beside the model."""
    torch.save({"last_epoch": 2, "_last_lr": [1e-3]}, folder / "ds" / "scheduler.pt")
    made = convert(folder / "ds", folder / "alone", "training")
    assert [note.partition(":")[0] for note in made.notes] == [f"{folder / 'ds'} has no trainer_state.json"]
    (folder / "ds" / "trainer_state.json").write_text('{"global_step": 2}')
    assert convert(folder / "ds", folder / "training", "training").notes == []
    assert verify(folder / "training") == []
    found = TrainingSource(folder / "training")
    assert found.tensors == source.tensors
    for name in source.tensors:
        assert torch.equal(found.read(name), source.read(name)), name
        wanted, held = source.moments(name), found.moments(name)
        assert held.keys() == wanted.keys()
        assert all(torch.equal(held[key], wanted[key]) for key in wanted), name
    assert (found.index.loss_scale is not None) == (case.precision == "fp16")
    assert found.index.counters["global_steps"] == 2
    assert found.index.scheduler == {"last_epoch": 2, "_last_lr": [1e-3]}
    assert (folder / "training" / "trainer_state.json").is_file()


def from_weights(backend: str, stage: int, directory: str) -> None:
    """A universal checkpoint made of a plain Hugging Face directory: DeepSpeed begins with these weights."""
    case, folder = Zero(stage, "fp32", stage), Path(directory, f"weights-{backend}-{stage}")
    plain = make_model(Case("llama", "LlamaConfig"), seed=7)
    if dist.get_rank() == 0:
        plain.save_pretrained(folder / "hf")
        made = convert(folder / "hf", folder / "u", "universal")
        assert made.notes == ["the source has no optimizer's state: the moments are zero and the step is 0"]
    dist.barrier()
    first = engine_of(case, stage, backend, universal=True)
    first.load_checkpoint(str(folder / "u"))
    assert first.optimizer.param_groups[0]["lr"] == 1e-3, "the engine keeps its own settings"
    found = [step(first, number) for number in range(2)]
    first.destroy()
    wanted = train_whole(plain)
    assert abs(found[0] - wanted[0]) < 1e-6 * wanted[0], "the weights are those"
    assert abs(found[1] - wanted[1]) < 1e-4 * wanted[1], f"Adam begins anew: {found}, not {wanted}"


def train_whole(model: Any) -> list[float]:
    """Train in one process on what both ranks see."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    losses = []
    for number in range(2):
        total: Any = 0.0
        for rank in range(2):
            ids = torch.randint(3, 60, (1, 8), generator=torch.Generator().manual_seed(10 * number + rank))
            total = total + model(input_ids=ids, labels=ids).loss / 2
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    return losses
