"""What runs of several files start from, and the runs of one process that they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.models import build_model, model_config
from hf_integration.train import main

SHORT = ["--block_size", "16", "--stdlib_bytes", "10000", "--max_eval_blocks", "8", "--logging_steps", "1"]
SHORT += ["--max_steps", "3", "--learning_rate", "3e-3", "--disable_tqdm", "true"]
"""Data and steps of the runs that only are to equal one another."""


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to start from: stages of ZeRO and processes differ in how they draw initial weights."""
    folder = tmp_path_factory.mktemp("start")
    tokenizer = build_byte_tokenizer()
    torch.manual_seed(0)
    build_model(model_config(None, "tiny-llama", tokenizer), None).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def in_one_process(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of the run of SHORT in one process on the CPU, by the sequences of a batch and its batches.

    Weights are near one another only where gradients were summed in the same portions: Adam makes a step of
    full size out of a gradient that is nothing but rounding.
    """

    @cache
    def run(batch: int, accumulation: int = 1) -> Path:
        folder = tmp_path_factory.mktemp(f"batch{batch}x{accumulation}-")
        flags = ["--use_cpu", "--model_name_or_path", str(start), *SHORT, "--sample_tokens", "0"]
        flags += ["--per_device_train_batch_size", str(batch)]
        flags += ["--gradient_accumulation_steps", str(accumulation), "--output_dir", str(folder)]
        assert main(flags) == 0
        return folder

    return run
