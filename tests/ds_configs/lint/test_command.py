"""The command: files, standard input, mending in place and elsewhere, exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ds_configs.cli import main

ROOT = Path(__file__).parents[3]

GOOD = '{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}'
BAD = '{\n  "train_batch_size": "8"\n}\n'
MENDED = '{\n  "train_batch_size": 8\n}\n'
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    (tmp_path / "bad.json").write_text(BAD)
    return tmp_path / "bad.json"


def test_exit_status_is_for_ci(tmp_path: Path, bad: Path, capsys: Printed) -> None:
    (tmp_path / "good.json").write_text(GOOD)
    assert main(["lint", str(tmp_path / "good.json")]) == 0
    assert main(["lint", str(tmp_path / "good.json"), str(bad)]) == 1
    out = capsys.readouterr().out
    assert "good.json: 1 note," in out
    assert "bad.json:2:23: error DSC208" in out


@pytest.mark.parametrize(("level", "status"), [("error", 0), ("warning", 1), ("note", 1)])
def test_fail_on_sets_what_fails(tmp_path: Path, level: str, status: int, capsys: Printed) -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 1, "overlap_comm": True}}
    (tmp_path / "c.json").write_text(json.dumps(config))
    assert main(["lint", "--fail-on", level, str(tmp_path / "c.json")]) == status


def test_fix_writes_the_file(bad: Path, capsys: Printed) -> None:
    assert main(["lint", "--fix", str(bad)]) == 0
    assert bad.read_text() == MENDED
    assert "DSC208" not in capsys.readouterr().out


def test_diff_writes_nothing(bad: Path, capsys: Printed) -> None:
    assert main(["lint", "--diff", str(bad)]) == 0
    assert bad.read_text() == BAD
    assert '-  "train_batch_size": "8"\n+  "train_batch_size": 8\n' in capsys.readouterr().out


def test_output_goes_elsewhere(bad: Path, tmp_path: Path, capsys: Printed) -> None:
    assert main(["lint", "--output", str(tmp_path / "new.json"), str(bad)]) == 0
    assert (bad.read_text(), (tmp_path / "new.json").read_text()) == (BAD, MENDED)
    capsys.readouterr()
    assert main(["lint", "--output", "-", str(bad)]) == 0
    assert capsys.readouterr().out == MENDED


def test_fix_writes_utf_8_with_the_lines_ends_kept(tmp_path: Path, capsys: Printed) -> None:
    file = tmp_path / "c.json"
    file.write_bytes('{\r\n  "train_batch_size": "8"\r\n}'.encode("utf-16"))
    assert main(["lint", "--fix", str(file)]) == 0
    assert file.read_bytes() == b'{\r\n  "train_batch_size": 8\r\n}'


def test_a_guessed_encoding_stays_unless_unsafe_fixes_are_asked_for(tmp_path: Path, capsys: Printed) -> None:
    file, out = tmp_path / "c.json", tmp_path / "out.json"
    before = '{"train_batch_size": "8", "tensorboard": {"job_name": "日本語"}}'.encode("shift_jis")
    file.write_bytes(before)
    assert main(["lint", "--fix", str(file)]) == 1
    assert file.read_bytes() == before
    assert main(["lint", "--output", str(out), str(file)]) == 1
    assert out.read_bytes() == before
    main(["lint", "--fix", "--unsafe-fixes", str(file)])
    assert json.loads(file.read_text(encoding="utf-8"))["train_batch_size"] == 8


def test_unsafe_fixes_are_asked_for(tmp_path: Path, capsys: Printed) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"train_batch_size": 8, "amp": {"enabled": true}}')
    assert main(["lint", "--fix", str(file)]) == 1
    assert "amp" in file.read_text()
    assert main(["lint", "--fix", "--unsafe-fixes", str(file)]) == 0
    assert file.read_text() == '{"train_batch_size": 8}'


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    assert main(["lint", "-"]) == 1
    assert "-:2:23: error DSC208" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a file to lint"),
        (["--fix", "-"], "standard input can be read once and not written"),
        (["--fix", "--diff", "c.json"], "--fix and --diff exclude each other"),
        (["--diff", "--format", "json", "c.json"], "--format json has no --diff"),
        (["--quiet", "--format", "sarif", "c.json"], "--format sarif has no --quiet"),
        (["--codes", "c.json"], "--codes lists the codes and lints nothing; leave the files out"),
        (["--codes", "--for", "hf"], "--codes lists the codes and lints nothing; leave --for out"),
        (["--codes", "--fail-on", "note"], "--codes lists the codes and lints nothing; leave --fail-on out"),
        (["--diff", "--quiet", "c.json"], "--quiet is about findings"),
        (["--output", "-", "--quiet", "c.json"], "--quiet is about findings"),
        (["--output", "", "c.json"], "--output is empty"),
        (["--output", "-", "--format", "json", "c.json"], "--output - prints the mended file"),
        (["--unsafe-fixes", "c.json"], "--unsafe-fixes mends nothing by itself"),
        (["--output", "x", "a.json", "b.json"], "--output takes one file, but 2 are named"),
        (["--world-size", "0", "c.json"], "the world size is 0"),
        (["--deepspeed-version", "1.2", "c.json"], "DeepSpeed 1.2 has no schema here"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], says: str, capsys: Printed) -> None:
    assert main(["lint", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ds-config: {says}")
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_read_is_a_finding_and_not_mended(tmp_path: Path, capsys: Printed) -> None:
    assert main(["lint", str(tmp_path / "none.json")]) == 1
    assert "none.json does not exist" in capsys.readouterr().out
    assert main(["lint", "--fix", str(tmp_path / "none.json")]) == 1
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize("format", ["json", "sarif"])
def test_formats_for_programs(bad: Path, format: str, capsys: Printed) -> None:
    assert main(["lint", "--format", format, str(bad)]) == 1
    assert json.loads(capsys.readouterr().out)


def test_codes_are_listed(capsys: Printed) -> None:
    assert main(["lint", "--codes"]) == 0
    assert "DSC208  error    quoted-number" in capsys.readouterr().out


def test_it_needs_neither_torch_nor_deepspeed(bad: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'deepspeed', 'transformers', 'npu_plugins'): sys.modules[name] = None\n"
        "from ds_configs.cli import main\n"
        f"sys.exit(main(['lint', '--format', 'sarif', {str(bad)!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1, run.stderr


def test_a_name_that_is_no_text_is_printed_in_every_format(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.json")).write_text(BAD)
    for format in ("text", "json", "sarif"):
        run = subprocess.run(
            [sys.executable, "-m", "ds_configs.cli", "lint", "--format", format, os.fsdecode(b"\xff.json")],
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=60,
        )
        assert (run.returncode, run.stderr) == (1, b"")
        assert b"DSC208" in run.stdout


def test_our_own_presets_have_no_error(capsys: Printed) -> None:
    from ds_configs.presets import PRESET_DIR

    files = sorted(str(path) for path in PRESET_DIR.glob("*.json"))
    assert main(["lint", "--quiet", *files]) == 0
    assert capsys.readouterr().out.count("read for") == len(files) > 5
