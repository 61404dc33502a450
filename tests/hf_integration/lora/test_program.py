"""train.py with LoRA: adapters, or the model that they are merged into, at tp 2 × pp 2 and in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from hf_integration.job import run
from hf_integration.train import main
from tests.hf_integration.runs import SMALL, logged
from tests.pipeline.conftest import Ranks

FAST = ["--max_steps", "4", "--logging_steps", "1", "--learning_rate", "1e-2", "--report_to", "none"]
LORA = ["--lora_r", "4", "--lora_dropout", "0.0", "--sample_tokens", "4"]


def train_py(argv: list[str]) -> None:
    """Do what train.py does on a rank, but leave the process group to the tests that follow."""
    run(argv)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few steps, and its adapters of a few more."""
    folder = tmp_path_factory.mktemp("one")
    common = [*SMALL, *FAST, "--use_cpu"]
    assert main([*common, "--sample_tokens", "0", "--output_dir", str(folder / "base")]) == 0
    assert main([*_from(folder), *FAST, *LORA, "--use_cpu", "--output_dir", str(folder / "lora")]) == 0
    return folder


def _from(folder: Path) -> list[str]:
    return ["--model_name_or_path", str(folder / "base" / "model"), *SMALL[2:]]


def test_adapters_alone_are_saved(one: Path) -> None:
    folder = one / "lora" / "model"
    assert (folder / "adapter_model.safetensors").is_file() and not (folder / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(one / "base" / "model")
    assert PeftModel.from_pretrained(base, str(folder)).peft_config["default"].r == 4
    assert logged(one / "lora", "eval_loss") < logged(one / "base", "eval_loss")


@pytest.mark.npu
def test_a_divided_run_is_the_same_and_merges(four: Ranks, one: Path, tmp_path: Path) -> None:
    argv = [*_from(one), *FAST, *LORA, "--lora_merge", "--gradient_accumulation_steps", "2"]
    argv += ["--per_device_train_batch_size", "4", "--output_dir", str(tmp_path / "divided")]
    argv += ["--tensor_model_parallel_size", "2", "--pipeline_model_parallel_size", "2"]
    four.run(train_py, argv, timeout=250)
    for key in ("loss", "grad_norm", "eval_loss"):
        assert logged(tmp_path / "divided", key) == pytest.approx(logged(one / "lora", key), rel=1e-4), key
    argv = [*SMALL[2:], "--model_name_or_path", str(tmp_path / "divided" / "model"), "--do_train", "false"]
    assert main([*argv, "--use_cpu", "--sample_tokens", "0", "--output_dir", str(tmp_path / "eval")]) == 0
    merged, adapted = (logged(folder, "eval_loss") for folder in (tmp_path / "eval", tmp_path / "divided"))
    assert merged == pytest.approx(adapted, rel=1e-6)
