"""What `--report_to` names is there, or is refused before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_integration.errors import TrainingInputError
from hf_integration.npu_arguments import NpuTrainingArguments
from hf_integration.reporting import check_reports


def test_tensorboard_and_nothing() -> None:
    check_reports(["tensorboard"])
    check_reports([])


def test_an_unknown_program() -> None:
    with pytest.raises(TrainingInputError, match="--report_to tensorbord: tensorbord is not supported, only"):
        check_reports(["tensorbord"])


def test_a_program_that_is_not_installed(tmp_path: Path) -> None:
    message = r"--report_to neptune needs a package that is not installed; `pip install neptune`, .*board"
    with pytest.raises(TrainingInputError, match=message):
        NpuTrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=["neptune"])
