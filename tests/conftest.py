"""Fixtures and settings that all tests share."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.fixtures import rank_pool, ranks
from tests.harness.npu import why_no_npu

__all__ = ["rank_pool", "ranks"]

# Examples are drawn from a fixed seed and never timed: a test fails for the code, not for a busy machine.
settings.register_profile(
    "suite",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, so that --strict-markers can catch a typing error."""
    config.addinivalue_line(
        "markers", "ranks(size, backend='hccl', preload=(), **fields): the world of `ranks`"
    )
    config.addinivalue_line("markers", "npu: needs an NPU, real or simulated; skipped where none can be had")


def pytest_collection_finish() -> None:
    """Take the modules of tests and libraries, which stay to the end, out of the garbage collector's way."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `npu` where there can be no NPU."""
    reason = why_no_npu() if item.get_closest_marker("npu") else None
    if reason:
        pytest.skip(reason)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run in which nothing ran: one that skipped everything has shown as little as an empty one."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped_only = reporter is not None and set(reporter.stats) & {"passed", "skipped"} == {"skipped"}
    if exitstatus == pytest.ExitCode.OK and skipped_only:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
