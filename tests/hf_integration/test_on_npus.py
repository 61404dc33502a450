"""The training program on two NPUs, against one process on the CPU.

On ranks of the pool: what the launchers add is shown by test_documents_commands and test_accelerate_launch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ds_configs.generate import ConfigRequest, generate, to_text
from ds_configs.presets import load_preset, preset_names, preset_path, preset_request
from hf_integration.data import DataArguments, load_data
from hf_integration.train import main
from tests.harness.pool import RankPool
from tests.hf_integration.runs import do_on_ranks, logged

PRECISIONS = ("fp32", "bf16", "fp16")
STEPS = ["--max_steps", "6", "--learning_rate", "3e-3", "--logging_steps", "1", "--disable_tqdm", "true"]
# The presets that leave batch and precision to the flags, and divide no layer.
BY_FLAGS = [
    name
    for name in preset_names()
    if load_preset(name).get("train_batch_size") == "auto" and "tensor_parallel" not in load_preset(name)
]
COMBINATIONS = [(preset, precision) for preset in BY_FLAGS for precision in PRECISIONS]
# The others that the Trainer can train, with the flags that agree with their numbers. They run one after the
# other in one process, for which DeepSpeed keeps its tensor-parallel groups, so AutoTP's comes last.
BATCH_OF_256 = ["--fp16", "--per_device_train_batch_size", "32", "--gradient_accumulation_steps", "4"]
OTHERS = {
    "docs_zero2": BATCH_OF_256,
    "docs_zero3": BATCH_OF_256,
    "zero3_nvme": ["--bf16", "--per_device_train_batch_size", "4"],
    "zero1_tp2": ["--bf16", "--per_device_train_batch_size", "8"],
}
# Enough text for three steps of 256 sequences, which are short: a simulated NPU computes fp16 slowly.
LARGER = ["--block_size", "8", "--stdlib_bytes", "20000", "--max_eval_blocks", "8", "--sample_tokens", "0"]
OTHER_STEPS = ["--max_steps", "3", "--learning_rate", "1e-3", *STEPS[4:]]
# DeepSpeed reports no gradient norm where it hands the optimizer back unwrapped.
WITH_NORM = [combination for combination in COMBINATIONS if combination != ("zero0", "fp32")]
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
DATA = ["--block_size", "32", "--stdlib_bytes", "20000", "--max_eval_blocks", "8", "--sample_tokens", "0"]


@pytest.fixture(scope="module")
def reference(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process on the CPU in fp32, with the batch of both ranks."""
    folder = tmp_path_factory.mktemp("reference")
    argv = ["--use_cpu", "--model_name_or_path", str(start), "--per_device_train_batch_size", "8"]
    assert main([*argv, *DATA, *STEPS, "--output_dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def on_npus(start: Path, rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of this file on two NPUs, in one world.

    Each preset in each precision has a folder ``preset-precision``, each of OTHERS one with its name.
    """
    folder = tmp_path_factory.mktemp("npus")
    runs = []
    for preset, precision in COMBINATIONS:
        argv = ["--deepspeed", str(preset_path(preset)), "--model_name_or_path", str(start)]
        argv += ["--per_device_train_batch_size", "4", "--output_dir", str(folder / f"{preset}-{precision}")]
        runs.append([*argv, *DATA, *STEPS, *([] if precision == "fp32" else [f"--{precision}"])])
    runs += runs_of_the_others(start, folder)
    do_on_ranks(rank_pool, runs)
    return folder


def runs_of_the_others(start: Path, folder: Path) -> list[list[str]]:
    """Return the arguments of the presets of OTHERS that can run here."""
    nvme = {**preset_request("zero3_nvme"), "nvme_path": str(folder / "drive")}
    text = to_text(generate(ConfigRequest.from_mapping(nvme)))
    (folder / "zero3_nvme.json").write_text(text, encoding="utf-8")
    runs = []
    for name, flags in OTHERS.items():
        file = folder / "zero3_nvme.json" if name == "zero3_nvme" else preset_path(name)
        if name == "zero3_nvme" and not has_libaio():
            continue
        argv = ["--deepspeed", str(file), "--model_name_or_path", str(start), *LARGER, *OTHER_STEPS]
        runs.append([*argv, *flags, "--output_dir", str(folder / name)])
    return runs


@pytest.mark.npu
@pytest.mark.parametrize(("preset", "precision"), COMBINATIONS)
def test_losses_equal_one_process_on_the_cpu(
    on_npus: Path, reference: Path, preset: str, precision: str
) -> None:
    expected = logged(reference, "loss")
    assert len(expected) == 6
    assert min(logged(reference, "grad_norm")) > 1.0  # gradient clipping takes part at every step
    losses = logged(on_npus / f"{preset}-{precision}", "loss")
    assert losses == pytest.approx(expected, rel=TOLERANCE[precision])


@pytest.mark.npu
@pytest.mark.parametrize(("preset", "precision"), WITH_NORM)
def test_gradient_norms_equal_one_process_on_the_cpu(
    on_npus: Path, reference: Path, preset: str, precision: str
) -> None:
    norms = logged(on_npus / f"{preset}-{precision}", "grad_norm")
    tolerance = 1e-3 if precision == "fp32" else 5e-2
    assert norms == pytest.approx(logged(reference, "grad_norm"), rel=tolerance)


@pytest.fixture(scope="module")
def evaluation_batch(start: Path) -> dict[str, torch.Tensor]:
    """What all runs of COMBINATIONS evaluate on, as one batch."""
    arguments = DataArguments(stdlib_bytes=20000, max_eval_blocks=8)
    tokenizer = AutoTokenizer.from_pretrained(start)
    data = load_data(arguments, block_size=32, longest=None, tokenizer=tokenizer)
    return data.collator([data.evaluation[index] for index in range(len(data.evaluation))])


@pytest.mark.npu
@pytest.mark.parametrize(("preset", "precision"), COMBINATIONS)
def test_saved_model_loads_and_has_the_loss_of_the_run(
    on_npus: Path, evaluation_batch: dict[str, torch.Tensor], preset: str, precision: str
) -> None:
    folder = on_npus / f"{preset}-{precision}"
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert model.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    with torch.no_grad():
        loss = model(**evaluation_batch).loss.item()
    assert [loss] == pytest.approx(logged(folder, "eval_loss"), rel=TOLERANCE[precision])


@cache
def has_libaio() -> bool:
    """Whether a program that calls libaio can be compiled, which offload to files wants."""
    program = "#include <libaio.h>\nint main() { io_context_t context = 0; return io_destroy(context); }"
    command = ["g++", "-x", "c++", "-", "-laio", "-o", os.devnull]
    return (
        shutil.which("g++") is not None and subprocess.run(command, input=program, text=True).returncode == 0
    )


@pytest.fixture(scope="module")
def larger(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of OTHER_STEPS in one process on the CPU with a preset's batch, once for each batch."""

    @cache
    def run(batch: str) -> Path:
        folder = tmp_path_factory.mktemp("larger")
        argv = ["--use_cpu", "--model_name_or_path", str(start), "--per_device_train_batch_size", batch]
        assert main([*argv, *LARGER, *OTHER_STEPS, "--output_dir", str(folder)]) == 0
        return folder

    return lambda preset: run("256" if preset.startswith("docs") else "8")


@pytest.mark.npu
@pytest.mark.parametrize("preset", OTHERS)
def test_the_other_presets_train_as_one_process_on_the_cpu(
    on_npus: Path, larger: Callable[[str], Path], preset: str
) -> None:
    """The documents' presets with the batch of 256 that they say, AutoTP, and offload to files."""
    if preset == "zero3_nvme" and not has_libaio():
        pytest.skip("libaio is not installed (libaio-dev)")
    expected = logged(larger(preset), "loss")
    assert len(expected) == 3
    assert expected[-1] < expected[0] - 0.05
    assert logged(on_npus / preset, "loss") == pytest.approx(expected, rel=2e-2)
    saved = AutoModelForCausalLM.from_pretrained(on_npus / preset / "model")
    assert sum(weight.numel() for weight in saved.parameters()) > 100_000
