"""The documents' scripts and snippets, word for word but for what is named here, on simulated NPUs."""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, default_collate

from ds_configs.presets import preset_path
from tests.harness.npu import rank_environment
from tests.harness.pool import RankPool
from tests.hf_integration.documents import definitions
from tests.hf_integration.documents.definitions import MyDataset, MyModel, num_epochs
from tests.hf_integration.documents.machines import ROOT, free_port

TEXTS = Path(__file__).parent / "documents"


def text_of(name: str, **changes: str) -> str:
    """Return a text of the documents, with a few passages changed: old=new, each found once."""
    text = (TEXTS / f"{name}.txt").read_text(encoding="utf-8")
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def losses_of(printed: str) -> dict[str, list[float]]:
    """Return the losses that `criterion` printed, by device."""
    found: dict[str, list[float]] = {}
    for device, value in re.findall(r"^loss (\S+) (\S+)$", printed, re.MULTILINE):
        found.setdefault(device, []).append(float(value))
    return found


def one_process(make_optimizer: Callable[[Any], torch.optim.Optimizer]) -> dict[str, list[float]]:
    """Train with the batches of both ranks in one process; return the losses of each rank's batches."""
    model, dataset = MyModel(), MyDataset()
    optimizer = make_optimizer(model.parameters())
    samplers = [DistributedSampler(dataset, 2, rank) for rank in range(2)]
    loaders = [DataLoader(dataset, 32, sampler=sampler) for sampler in samplers]
    losses: dict[str, list[float]] = {"npu:0": [], "npu:1": []}
    for epoch in range(num_epochs):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for batches in zip(*loaders, strict=True):
            optimizer.zero_grad()
            for rank, (inputs, labels) in enumerate(batches):
                loss = torch.nn.functional.mse_loss(model(inputs), labels)
                (loss / 2).backward()
                losses[f"npu:{rank}"].append(loss.item())
            optimizer.step()
    return losses


def assert_near(found: dict[str, list[float]], wanted: dict[str, list[float]]) -> None:
    """Compare the losses of each rank."""
    assert found.keys() == wanted.keys()
    for device, losses in wanted.items():
        assert found[device] == pytest.approx(losses, rel=1e-5)


@pytest.mark.npu
def test_data_parallelism_with_spawned_processes(tmp_path: Path) -> None:
    """The document's script leaves out two imports, and of course model and data; two ranks for its eight."""
    given = "import os\nfrom torch.utils.data import DataLoader\n"
    given += (
        "from tests.hf_integration.documents.definitions import MyDataset, MyModel, criterion, num_epochs\n"
    )
    port = {"'12355'": f"'{free_port()}'", "world_size = 8": "world_size = 2"}
    (tmp_path / "train.py").write_text(given + text_of("ddp_hccl", **port), encoding="utf-8")
    environment = rank_environment() | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-6000:]
    assert_near(losses_of(done.stdout), one_process(lambda each: torch.optim.Adam(each, lr=1e-4)))


def capture(run: Callable[[], Any]) -> str:
    """Return what a function writes to the standard output, through Python or past it."""
    read, write = os.pipe()
    kept = os.dup(1)
    os.dup2(write, 1)
    os.close(write)
    try:
        with os.fdopen(kept, "wb") as _, contextlib.redirect_stdout(os.fdopen(os.dup(1), "w")) as stream:
            run()
            stream.close()
            os.dup2(kept, 1)
    finally:
        with os.fdopen(read) as pipe:
            text = pipe.read()
    return text


def nccl_script(text: str, port: int) -> str:
    """Run the script for other cards on this rank; return what it printed."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    names = {
        "MyModel": MyModel,
        "MyDataset": lambda: MyDataset(named=True),
        "num_epochs": num_epochs,
        "__name__": "__main__",
    }
    return capture(lambda: exec(compile(text, "train.py", "exec"), names))


@pytest.mark.npu
def test_data_parallelism_written_for_other_cards(rank_pool: RankPool) -> None:
    """One line before the script makes it run on NPUs. It forgets to make an optimizer."""
    wrap = "    model = DDP(model, device_ids=[local_rank])\n"
    text = text_of(
        "ddp_nccl",
        **{wrap: f"{wrap}    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"},
        **{"num_workers=4": "num_workers=1"},
    )
    with rank_pool.world(2, None) as world:
        line = "from torch_npu.contrib import transfer_to_npu\n"
        printed = world.run(nccl_script, line + text, free_port(), timeout=200)
    found = losses_of("".join(printed))
    assert_near(found, one_process(lambda each: torch.optim.SGD(each, lr=0.1)))


def rows(count: int, start: int = 0) -> dict[str, torch.Tensor]:
    """Return rows of the data set as a batch."""
    data = MyDataset(named=True)
    return default_collate([data[index] for index in range(start, start + count)])


def on_npu(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch on this rank's NPU."""
    return {key: value.npu() for key, value in batch.items()}


def mixed_precision(text: str) -> tuple[str, float, torch.Tensor]:
    """Run the snippet on eight batches; return what was printed, the loss scale, and a weight."""
    model, batches = MyModel().npu(), [on_npu(rows(16)) for _ in range(8)]
    names = {
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataloader": [batch["inputs"] for batch in batches],
        "labels": batches[0]["labels"],
        "criterion": definitions.criterion,
    }
    printed = capture(lambda: exec(text, names))
    scaler: Any = names["scaler"]
    return printed, scaler.get_scale(), model.outer.weight.detach().cpu()


def accumulation(text: str) -> torch.Tensor:
    """Run the snippet on eight batches of four rows; return a weight."""
    model = MyModel().npu()
    loader = [on_npu(rows(4, start)) for start in range(0, 32, 4)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exec(text, {"torch": torch, "model": model, "optimizer": optimizer, "loader": loader})
    return model.outer.weight.detach().cpu()


def debugging(no_sync: str, norms: str, memory: str) -> tuple[dict[str, float], str]:
    """Accumulate over two batches on two ranks, then look at gradients and memory as the document does."""
    rank = dist.get_rank()
    model = DistributedDataParallel(MyModel().npu(), device_ids=[rank])
    batches = iter([on_npu(rows(8, 16 * rank)), on_npu(rows(8, 16 * rank + 8))])

    class Loss:
        """The loss of the next micro-batch."""

        def backward(self) -> None:
            model(**next(batches)).backward()

    exec(no_sync, {"model": model, "loss": Loss()})
    gradients = {name: each.grad.norm().item() for name, each in model.named_parameters()}
    names = {"model": model, "dist": dist, "torch": torch, "world_size": 2}
    printed = capture(lambda: exec(f"{norms}\n{memory}", names))
    return gradients, printed


def descend(batches: Sequence[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Return a weight after steps of clipped gradient descent on these batches, in fp32 on the CPU."""
    model = MyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(**batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.outer.weight.detach()


@pytest.mark.npu
def test_snippets(rank_pool: RankPool) -> None:
    """Two words of one change: torch.cuda.amp's autocast takes no device_type, its scaler no other card."""
    amp = {"torch.cuda.amp": "torch.amp", "GradScaler()": "GradScaler('npu')"}
    with rank_pool.world(2, "hccl") as world:
        printed, scale, weight = world.run(mixed_precision, text_of("mixed_precision", **amp))[0]
        accumulated = world.run(accumulation, text_of("accumulation"))[0]
        texts = [text_of(name) for name in ("no_sync", "gradient_norms", "memory")]
        (gradients, said), (others, also) = world.run(debugging, *texts)

    assert len(losses_of(printed)["npu:0"]) == 8
    skipped = 16 - int(math.log2(scale))  # the scaler halves 2^16 until no gradient overflows
    assert 0 <= skipped <= 4
    torch.testing.assert_close(weight, descend([rows(16)] * (8 - skipped)), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(accumulated, descend([rows(16), rows(16, 16)]), rtol=1e-5, atol=1e-6)

    model = MyModel()
    for start in range(0, 32, 8):
        (model(**rows(8, start)) / 2).backward()
    wanted = {f"module.{name}": each.grad.norm().item() for name, each in model.named_parameters()}
    assert gradients == pytest.approx(wanted, rel=1e-5)
    assert others == pytest.approx(wanted, rel=1e-5)
    for name, norm in wanted.items():
        assert f"{name}: grad_norm={norm:.4f}" in said
    assert re.search(r"Rank 0: \d+\.\dGB used", said)
    assert re.search(r"Rank 1: \d+\.\dGB used", also)


def trainer_script(text: str, folder: Path, port: int) -> list[float]:
    """Make the document's arguments in a folder with the configuration; train with the plain Trainer."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.chdir(folder)
    from transformers import Trainer

    from tests.hf_integration.divided import Sentences, make_model

    names: dict[str, Any] = {}
    exec(text, names)
    args = names["args"]
    trainer = Trainer(model=make_model("llama"), args=args, train_dataset=Sentences(128, seed=1))
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.npu
def test_plain_trainer_with_the_document_s_arguments(rank_pool: RankPool, tmp_path: Path) -> None:
    """Word for word, with a log at every step and without a tracker in addition."""
    from tests.hf_integration.divided import Run, train

    (tmp_path / "ds_config_zero3.json").write_text(preset_path("zero3").read_text(encoding="utf-8"))
    more = 'max_steps=2, logging_steps=1, report_to="none", save_strategy="no", '
    text = text_of("trainer_arguments", **{"    gradient_checkpointing": f"    {more}gradient_checkpointing"})
    rank_pool.preload("deepspeed", "hf_integration.npu_trainer")
    with rank_pool.world(2, None) as world:
        found = world.run(trainer_script, text, tmp_path, free_port(), timeout=250)
    flags = {"per_device_train_batch_size": 16, "learning_rate": 5e-5, "warmup_steps": 0, "weight_decay": 0.0}
    wanted = train(Run(rows=128, steps=2, micro_batches=4, flags=flags), tmp_path / "one")
    assert found[0] == pytest.approx(wanted.values("loss"), rel=2e-2)
    assert found[1] == found[0]
