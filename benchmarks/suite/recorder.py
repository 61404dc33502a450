"""Pytest plugin: write every test's outcome to a journal as it happens, so that a crash loses nothing.

Loaded with ``-p suite.recorder`` by `suite.process`; it talks to its parent through three variables:
``NPU_SUITE_JOURNAL`` (file that gets one JSON object a line), ``NPU_SUITE_DONE`` (file with the ids of
tests not to run again, one a line) and ``NPU_SUITE_LOG`` (file with the output of the process and its ranks).
"""

from __future__ import annotations

import json
import os
import unittest
from pathlib import Path

import pytest

JOURNAL = "NPU_SUITE_JOURNAL"
DONE = "NPU_SUITE_DONE"
LOG = "NPU_SUITE_LOG"
# Stands between why a test failed and what it and its ranks printed.
OUTPUT = "\n--- output ---\n"
# Enough for the traceback of a rank in front of the one of the test that waited for it.
TEXT_LIMIT = 12_000


def shorten(text: str, limit: int = TEXT_LIMIT) -> str:
    """Keep head and tail of `text` (characters), where the cause and the final message stand."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}\n[...]\n{text[-2 * limit // 3 :]}"


def log_since(log: Path, start: int) -> str:
    """What was written to `log` from byte `start` on."""
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


class Recorder:
    """Collects the phases of one test and writes its outcome."""

    def __init__(self, journal: Path, done: set[str], log: Path) -> None:
        self._journal = journal
        self._log = log
        self._log_start = 0
        self._done = done
        self._owner = os.getpid()
        self._outcomes: dict[str, tuple[str, str]] = {}

    def _write(self, **record: object) -> None:
        if os.getpid() != self._owner:  # a forked rank of a test, not the session
            return
        with self._journal.open("a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what an earlier process of the same file already settled."""
        self._write(event="collected", tests=[item.nodeid for item in items])
        items[:] = [item for item in items if item.nodeid not in self._done]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported counts as one failed test, one that skips itself as one skipped."""
        if report.outcome != "passed":
            skipped = report.outcome == "skipped"
            reason = (
                report.longrepr[2] if skipped and isinstance(report.longrepr, tuple) else str(report.longrepr)
            )
            self._write(
                event="end", test=report.nodeid or "collection", outcome=report.outcome, text=shorten(reason)
            )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Name the running test, so that the parent knows whom a crash or a hang belongs to."""
        self._log_start = self._log.stat().st_size
        self._write(event="start", test=nodeid, log_start=self._log_start)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the worst phase; sub-tests report under the id of their test."""
        known = self._outcomes.get(report.nodeid, ("passed", ""))
        if report.outcome == "failed":
            self._outcomes[report.nodeid] = ("failed", known[1] + shorten(report.longreprtext))
        elif report.outcome == "skipped" and known[0] != "failed" and report.when != "teardown":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._outcomes[report.nodeid] = ("passed" if hasattr(report, "wasxfail") else "skipped", reason)
        else:
            self._outcomes.setdefault(report.nodeid, known)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Settle the test."""
        outcome, text = self._outcomes.pop(nodeid, ("failed", "the test ended without a report"))
        if outcome == "failed":
            text += OUTPUT + shorten(log_since(self._log, self._log_start))
        self._write(event="end", test=nodeid, outcome=outcome, text=text)

    def pytest_sessionfinish(self) -> None:
        """Everything collected was settled."""
        self._write(event="finish")


def _no_test(self: unittest.TestCase) -> None:
    raise AssertionError("this method only stands in for a test while pytest collects; it is never run.")


def pytest_pycollect_makeitem(obj: object) -> None:
    """Give test classes the method that pytest, unlike unittest, looks up in an instance to collect."""
    is_case = isinstance(obj, type) and issubclass(obj, unittest.TestCase) and not hasattr(obj, "runTest")
    if is_case and any(name.startswith("test") for name in dir(obj)):
        obj.runTest = _no_test  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder in the session whose parent asked for a journal."""
    journal, done, log = (os.environ.get(name) for name in (JOURNAL, DONE, LOG))
    if not journal or not done or not log:
        raise pytest.UsageError(
            f"{JOURNAL}, {DONE} and {LOG} name the files this plugin uses; set all three."
        )
    settled = set(Path(done).read_text(encoding="utf-8").splitlines())
    config.pluginmanager.register(Recorder(Path(journal), settled, Path(log)), "npu-suite-recorder")
