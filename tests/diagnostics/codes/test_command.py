"""`npu-plugins explain` takes logs and codes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from npu_plugins.cli import main


def test_codes_and_logs_are_explained_each_code_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes(b"\xff EI0006 again; error code is 507015\n")
    assert main(["explain", str(log), "EI0006", "--json"]) == 0
    assert [told["code"] for told in json.loads(capsys.readouterr().out)] == ["EI0006", "507015"]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("ret: 107020"))
    assert main(["explain", "-"]) == 0
    assert capsys.readouterr().out.startswith("107020 (ACL_ERROR_RT_TASK_TIMEOUT): A task did not end")


def test_what_holds_no_code_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "ei0002", "boredom"]) == 1
    told = capsys.readouterr()
    assert "EI0002" in told.out and "is known in 'boredom'; give" in told.err


def test_a_missing_log_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "missing.log"]) == 1
    assert "There is no file missing.log" in capsys.readouterr().err
