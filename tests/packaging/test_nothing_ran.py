"""`make test` must not pass when it has tested nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.interpreter import run_python

ROOT = Path(__file__).parents[2]
SKIPPED = "@pytest.mark.skip(reason='no NPU')\ndef test_skipped() -> None: ...\n"
PASSED = "def test_passed() -> None: ...\n"


@pytest.mark.parametrize(("tests", "status"), [(SKIPPED, 5), (SKIPPED + PASSED, 0)], ids=["skipped", "both"])
def test_a_run_that_ran_nothing_fails(tmp_path: Path, tests: str, status: int) -> None:
    (tmp_path / "test_some.py").write_text(f"import pytest\n{tests}")
    done = run_python("-m", "pytest", "-p", "tests.conftest", "-c", "/dev/null", str(tmp_path), cwd=ROOT)
    assert done.returncode == status, done.stdout
