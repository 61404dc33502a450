"""The training program on two NPUs under the deepspeed launcher, against one process on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ds_configs.presets import preset_names, preset_path
from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.models import build_model, model_config
from hf_integration.train import main
from tests.harness.npu import rank_environment
from tests.hf_integration.runs import SMALL, launch, logged

PRECISIONS = ("fp32", "bf16", "fp16")
COMBINATIONS = [(preset, precision) for preset in preset_names() for precision in PRECISIONS]
# DeepSpeed reports no gradient norm where it hands the optimizer back unwrapped.
WITH_NORM = [combination for combination in COMBINATIONS if combination != ("zero0", "fp32")]
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
DATA = ["--block_size", "32", "--stdlib_bytes", "20000", "--max_eval_blocks", "8", "--sample_tokens", "0"]
STEPS = ["--max_steps", "10", "--learning_rate", "3e-3", "--logging_steps", "1", "--disable_tqdm", "true"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to start from, so that the stages do not differ in how they draw initial weights."""
    folder = tmp_path_factory.mktemp("start")
    tokenizer = build_byte_tokenizer()
    torch.manual_seed(0)
    build_model(model_config(None, "tiny-llama", tokenizer), None).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reference(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process on the CPU in fp32, with the batch of both ranks."""
    folder = tmp_path_factory.mktemp("reference")
    argv = ["--use_cpu", "--model_name_or_path", str(start), "--per_device_train_batch_size", "8"]
    assert main([*argv, *DATA, *STEPS, "--output_dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def on_npus(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All presets in all precisions on two NPUs, one launch; each has a folder ``preset-precision``."""
    folder = tmp_path_factory.mktemp("npus")
    runs = []
    for preset, precision in COMBINATIONS:
        argv = ["--deepspeed", str(preset_path(preset)), "--model_name_or_path", str(start)]
        argv += ["--per_device_train_batch_size", "4", "--output_dir", str(folder / f"{preset}-{precision}")]
        runs.append([*argv, *DATA, *STEPS, *([] if precision == "fp32" else [f"--{precision}"])])
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    launch("tests/hf_integration/runs.py", [str(folder / "runs.json")], rank_environment(), timeout=900)
    return folder


@pytest.mark.npu
@pytest.mark.parametrize(("preset", "precision"), COMBINATIONS)
def test_losses_equal_one_process_on_the_cpu(
    on_npus: Path, reference: Path, preset: str, precision: str
) -> None:
    expected = logged(reference, "loss")
    assert len(expected) == 10
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


@pytest.mark.npu
@pytest.mark.parametrize(("preset", "precision"), COMBINATIONS)
def test_saved_model_loads_and_has_the_loss_of_the_run(
    on_npus: Path, tmp_path: Path, preset: str, precision: str
) -> None:
    folder = on_npus / f"{preset}-{precision}"
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert model.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    argv = ["--use_cpu", "--do_train", "false", "--model_name_or_path", str(folder / "model"), *DATA]
    assert main([*argv, "--output_dir", str(tmp_path)]) == 0
    expected = logged(folder, "eval_loss")
    assert logged(tmp_path, "eval_loss") == pytest.approx(expected, rel=TOLERANCE[precision])


@pytest.mark.npu
def test_report_of_a_run_under_the_launcher(tmp_path: Path) -> None:
    argv = ["--deepspeed", str(preset_path("zero3")), "--bf16", *SMALL, "--max_steps", "3"]
    argv += ["--sample_tokens", "8", "--output_dir", str(tmp_path)]
    report = launch("hf_integration/train.py", argv, rank_environment(), timeout=280)
    assert "device        npu:0 (" in report
    assert "2 rank(s)" in report
    assert "backend       hccl" in report
    assert "accelerator   npu_plugins.accelerator." in report
    assert "  | def " in report
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
