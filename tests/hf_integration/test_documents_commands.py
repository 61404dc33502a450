"""The documents' launch commands, as written but for names and counts, on simulated NPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ds_configs.presets import preset_path
from tests.harness.npu import rank_environment
from tests.hf_integration.documents.machines import deepspeed_on_two, torchrun_on_two
from tests.hf_integration.runs import launch, logged
from tests.hf_integration.starting import SHORT

SILENT = ["--sample_tokens", "0"]
BATCH = ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4"]
DEGREES = ["--tensor_model_parallel_size", "2", "--pipeline_model_parallel_size", "2", "--zero_stage", "1"]
DOCUMENTS_BATCH = ["--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "4"]
# One simulated machine is told from another by a variable; cards of one machine cannot pass for two.
two_machines = pytest.mark.skipif("ASCEND_HOME_PATH" in os.environ, reason="this machine has real NPUs")


def assert_same(found: Path, wanted: Path, tolerance: float) -> None:
    """Compare the losses and gradient norms of two runs."""
    for key in ("loss", "grad_norm", "eval_loss"):
        assert logged(found, key) == pytest.approx(logged(wanted, key), rel=tolerance), key


@pytest.mark.npu
def test_tensor_and_pipeline_parallelism_from_one_command(
    start: Path, in_one_process: Callable[..., Path], tmp_path: Path
) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text(preset_path("zero0").read_text(encoding="utf-8"), encoding="utf-8")
    flags = ["--deepspeed", str(config), *DEGREES]
    flags += ["--model_name_or_path", str(start), *SHORT, "--sample_tokens", "4", *BATCH]
    flags += ["--output_dir", str(tmp_path / "four")]
    text = launch("hf_integration/train.py", flags, rank_environment(), timeout=280, ranks=4)
    assert "4 rank(s)" in text
    assert "accelerator   npu_plugins.accelerator." in text
    assert "  | def " in text

    wanted = in_one_process(2, 4)
    assert_same(tmp_path / "four", wanted, 1e-4)
    saved, expected = (
        AutoModelForCausalLM.from_pretrained(folder / "model") for folder in (tmp_path / "four", wanted)
    )
    for (name, parameter), other in zip(saved.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-3, atol=1e-4, msg=name)
    entries = [json.loads(line) for line in (tmp_path / "four" / "log.jsonl").read_text().splitlines()]
    assert all(
        entry[f"memory_mib_rank{rank}"] > 0 for entry in entries if "loss" in entry for rank in range(4)
    )


@pytest.mark.npu
@two_machines
def test_deepspeed_on_two_machines(start: Path, in_one_process: Callable[..., Path], tmp_path: Path) -> None:
    """ZeRO-3 in bf16, with the batch of the document, and the report that ends a run."""
    command = [
        "hf_integration/train.py",
        "--deepspeed",
        str(preset_path("zero3")),
        *DOCUMENTS_BATCH,
        "--bf16",
    ]
    command += ["--model_name_or_path", str(start), *SHORT, "--sample_tokens", "8"]
    text = deepspeed_on_two(tmp_path, [*command, "--output_dir", str(tmp_path / "two")], timeout=280)
    assert "device        npu:0 (" in text
    assert "2 rank(s)" in text
    assert "backend       hccl" in text
    assert "accelerator   npu_plugins.accelerator." in text
    assert "  | def " in text
    assert (tmp_path / "two" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert_same(tmp_path / "two", in_one_process(64), 2e-2)


@pytest.mark.npu
@two_machines
def test_torchrun_on_two_machines(start: Path, in_one_process: Callable[..., Path], tmp_path: Path) -> None:
    """Without DeepSpeed, and with the arguments that the documents give to the deepspeed launcher."""
    runs = {
        "plain": BATCH[:2],
        "zero3": ["--deepspeed", str(preset_path("zero3")), *DOCUMENTS_BATCH, "--bf16"],
        "degrees": ["--deepspeed", str(preset_path("zero0")), *DEGREES, *BATCH],
    }
    common = ["--model_name_or_path", str(start), *SHORT, *SILENT, "--output_dir"]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([[*flags, *common, str(tmp_path / name)] for name, flags in runs.items()]))
    torchrun_on_two(tmp_path, 2, ["tests/hf_integration/runs.py", str(file)], timeout=280)

    wanted = in_one_process(8)
    assert_same(tmp_path / "plain", wanted, 1e-4)
    assert_same(tmp_path / "degrees", wanted, 1e-4)
    assert_same(tmp_path / "zero3", in_one_process(128), 2e-2)
