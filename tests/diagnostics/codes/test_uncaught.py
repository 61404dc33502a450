"""An uncaught exception is shown as before; what the codes in it mean follows."""

from __future__ import annotations

import sys

import pytest

from npu_plugins.diagnostics.codes.uncaught import ExplainingHook, explain_uncaught


def show(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    explain_uncaught()
    explain_uncaught()
    sys.excepthook(type(error), error, None)


def test_codes_of_an_uncaught_exception_are_explained_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(RuntimeError("NPU function error: aclrtMalloc, error code is 207001"), monkeypatch)
    assert isinstance(sys.excepthook, ExplainingHook) and sys.excepthook.previous is sys.__excepthook__
    told = capsys.readouterr().err
    assert told.startswith("RuntimeError: NPU function error")
    assert told.count("npu-plugins: 207001 (ACL_ERROR_RT_MEMORY_ALLOCATION): ") == 1


def test_the_cause_of_an_exception_is_read_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ValueError("the step failed")
    error.__cause__ = RuntimeError("EI0004")
    show(error, monkeypatch)
    assert "npu-plugins: EI0004 (" in capsys.readouterr().err


def test_an_exception_without_codes_is_shown_as_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(ValueError("step 207001 of 300000"), monkeypatch)
    assert capsys.readouterr().err == "ValueError: step 207001 of 300000\n"
