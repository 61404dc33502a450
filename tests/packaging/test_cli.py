"""The command `npu-plugins`."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_plugins import __version__
from npu_plugins.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"npu-plugins {__version__}\n"


def test_no_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.npu
def test_info_names_settings_and_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPU_SIM", "4")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("NPU_SIM_CACHE", str(tmp_path))
    assert main(["simulator", "info"]) == 0
    out = capsys.readouterr().out
    assert "simulated NPUs: 4, of which 2 visible here" in out
    assert f"cache:          {tmp_path}" in out
    assert "not built yet" in out


@pytest.mark.npu
def test_what_cannot_be_done_ends_with_status_1_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-g++")
    assert main(["simulator", "build"]) == 1
    assert capsys.readouterr().err.startswith("npu-plugins: error: NPU_SIM needs a C++20 compiler")


def test_cleaning_an_empty_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPU_SIM_CACHE", str(tmp_path / "none"))
    assert main(["simulator", "clean"]) == 0
    assert capsys.readouterr().out.startswith("0 B freed")


@pytest.mark.parametrize(("ends", "status"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_an_interrupt_and_a_reader_that_left_are_no_tracebacks(
    ends: type[BaseException], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(what: object) -> int:
        raise ends

    monkeypatch.setattr("npu_plugins.diagnostics.codes.command.explain_command", raises)
    with (tmp_path / "out").open("w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(["explain", "EI0002"]) == status


def test_a_character_that_the_terminal_lacks_is_written_as_an_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "npu_plugins.diagnostics.codes.command.explain_command", lambda options: print("tp 1 × dp 4") or 0
    )
    with (tmp_path / "out").open("w", encoding="ascii") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(["explain", "EI0002"]) == 0
    assert (tmp_path / "out").read_text() == "tp 1 \\xd7 dp 4\n"
