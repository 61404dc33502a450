"""Run torch_npu's own tests, unmodified, on simulated NPUs and tabulate what came of them.

    python benchmarks/torch_npu_suite.py CHECKOUT [--files 'npu/test_st*'] [--report docs/torch_npu_suite.md]

CHECKOUT is a clone of torch_npu's public repository at the tag that fits the installed wheel. It is
copied to a scratch folder, where the tests may write; they run in its folder test/, so that the sources
beside it do not hide the wheel. Every file runs in a process and session of its own; outcomes are kept
in a state file, so a second call goes on where the first was ended.
Besides the project, the tests want the etcd server (Debian: etcd-server) and
pip install pytest expecttest parameterized beartype ml-dtypes pillow python-etcd.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import signal
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from suite.classify import need_of
from suite.launch import import_ahead
from suite.process import FileRun, RunSettings, environment_of_npus, run_file
from suite.report import markdown, tally

TITLE = "# torch_npu's own tests on simulated NPUs"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="clone of torch_npu's repository")
    parser.add_argument("--files", default="*", help="glob over paths below test/, such as 'npu/test_s*'")
    parser.add_argument("--npus", type=int, default=8, help="simulated NPUs (default 8)")
    parser.add_argument(
        "--test-timeout", type=float, default=180, metavar="S", help="seconds a test may take"
    )
    parser.add_argument("--timeout", type=float, default=1800, metavar="S", help="seconds a file may take")
    parser.add_argument("--state", type=Path, default=None, help="file that keeps the outcomes (JSON)")
    parser.add_argument(
        "--again", choices=["failed", "all"], help="run settled files again: those with failures, or all"
    )
    parser.add_argument("--no-repeat", action="store_true", help="do not repeat failures with spawned ranks")
    parser.add_argument("--report", type=Path, help="write the table (markdown) here")
    parser.add_argument("--report-only", action="store_true", help="run nothing, tabulate the state file")
    return parser.parse_args()


def copy_checkout(checkout: Path) -> Path:
    """Copy what the tests read to a scratch folder, since they also write there; returns its folder test/."""
    if not (checkout / "test").is_dir():
        raise SystemExit(f"{checkout} has no folder test/; give a checkout of torch_npu's repository.")
    target = Path(tempfile.gettempdir()) / "torch_npu_suite"
    shutil.copytree(checkout, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", "docs"))
    # Tests that build C++ want the headers of CANN's runtime here; the wheel ships those it was built with.
    wheel = Path(find_spec("torch_npu").submodule_search_locations[0])
    shutil.copytree(wheel / "include/third_party/acl/inc", target / "third_party/acl/inc", dirs_exist_ok=True)
    return target / "test"


def test_files(root: Path, pattern: str) -> list[str]:
    """Paths of the test files below npu/ and distributed/, small files first."""
    found = [p for part in ("npu", "distributed") for p in (root / part).rglob("test_*.py")]
    names = sorted(found, key=lambda p: (p.relative_to(root).parts[0] != "npu", p.stat().st_size))
    return [str(p.relative_to(root)) for p in names if fnmatch.fnmatch(str(p.relative_to(root)), pattern)]


def unproven_failures(run: FileRun) -> set[str]:
    """Tests that failed without proof that they need what is not simulated."""
    return {t for t, r in run.tests.items() if r["outcome"] == "failed" and not need_of(r["text"])}


def run_and_retry(file: str, settings: RunSettings, repeat: bool) -> FileRun:
    """Run a file with forked ranks, then what failed unproven again without its neighbours.

    On a card as here, a stream that failed fails every later test of the process. What fails by itself, too,
    is repeated with an interpreter of its own and ranks spawned as torch does it.
    """
    run = run_file(file, settings, quick=True)
    for quick in (True, False) if repeat else ():
        unproven = unproven_failures(run)
        if not unproven or "collection" in unproven:
            break
        again = run_file(file, settings, quick=quick, skip=set(run.tests) - unproven)
        run.tests.update(again.tests)
        run.seconds += again.seconds
    return run


def chosen(files: list[str], state: dict, again: str | None) -> list[str]:
    """Files still to run."""
    if again == "all":
        return files
    return [f for f in files if f not in state or (again == "failed" and tally(state[f]["tests"]).failed)]


def main() -> int:
    """Run, keep the outcomes, print a line a file, write the table."""
    options = arguments()
    root = copy_checkout(options.checkout)
    state_file = options.state or root.parent / "state.json"
    state = json.loads(state_file.read_text()) if state_file.exists() else {}
    try:
        settings = RunSettings(root, options.npus, options.test_timeout, options.timeout)
    except ValueError as refused:
        print(refused, file=sys.stderr)
        return 2
    todo = [] if options.report_only else chosen(test_files(root, options.files), state, options.again)
    os.environ.update(environment_of_npus(options.npus))
    if todo:
        import_ahead()
    # Ended from outside, the program still ends the processes of the file it is at.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for number, file in enumerate(todo, 1):
        run = run_and_retry(file, settings, not options.no_repeat)
        state[file] = {"tests": run.tests, "seconds": run.seconds, "npus": options.npus}
        state_file.write_text(json.dumps(state, indent=1))
        counted = tally(run.tests)
        print(f"[{number}/{len(todo)}] {file}: {counted}, {run.seconds:.0f} s", flush=True)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "torch_npu"))
    ran = f"{len(state)} of the {len(test_files(root, '*'))} files have run"
    table = markdown(state, f"{TITLE}\n\n{versions}, {options.npus} simulated NPUs; {ran}.")
    if options.report:
        options.report.write_text(table, encoding="utf-8")
    print(table.split("\n\n")[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
