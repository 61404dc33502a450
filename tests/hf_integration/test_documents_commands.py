"""The documents' command for 3D parallelism, as written but for names and counts, on simulated NPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ds_configs.presets import preset_path
from hf_integration.train import main
from tests.harness.npu import rank_environment
from tests.hf_integration.runs import launch, logged

MODEL = ["--config_name", "tiny-llama", "--block_size", "32", "--stdlib_bytes", "20000"]
RUN = [
    *MODEL,
    "--max_eval_blocks",
    "8",
    "--max_steps",
    "4",
    "--learning_rate",
    "3e-3",
    "--logging_steps",
    "1",
]


@pytest.mark.npu
def test_tensor_and_pipeline_parallelism_from_one_command(tmp_path: Path) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text(preset_path("zero0").read_text(encoding="utf-8"), encoding="utf-8")
    flags = ["--deepspeed", str(config)]
    flags += ["--tensor_model_parallel_size", "2", "--pipeline_model_parallel_size", "2", "--zero_stage", "1"]
    flags += [*RUN, "--sample_tokens", "4", "--output_dir", str(tmp_path / "four")]
    flags += ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4"]
    text = launch("hf_integration/train.py", flags, rank_environment(), timeout=280, ranks=4)
    assert "4 rank(s)" in text
    assert "accelerator   npu_plugins.accelerator." in text
    assert "  | def " in text

    whole = [*RUN, "--use_cpu", "--sample_tokens", "0", "--output_dir", str(tmp_path / "one")]
    assert main([*whole, "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4"]) == 0
    for key in ("loss", "grad_norm", "eval_loss"):
        found, wanted = (logged(tmp_path / name, key) for name in ("four", "one"))
        assert found == pytest.approx(wanted, rel=1e-4), key

    saved, expected = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name / "model") for name in ("four", "one")
    )
    for (name, parameter), other in zip(saved.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-3, atol=1e-4, msg=name)
    entries = [json.loads(line) for line in (tmp_path / "four" / "log.jsonl").read_text().splitlines()]
    assert all(
        entry[f"memory_mib_rank{rank}"] > 0 for entry in entries if "loss" in entry for rank in range(4)
    )
