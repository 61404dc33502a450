"""Pytest plugin: start a test's ranks by forking a process that has torch_npu imported already.

torch's multi-process test cases spawn a fresh interpreter per rank, four to eight times a test, and
importing torch and torch_npu costs each 3 seconds of CPU: on two cores the whole suite would take most
of a day. The start method "spawn" is therefore answered by Python's fork server. A rank still gets the
environment its test has set; what a library reads from it while it is imported comes too late, so every
failed test is repeated with real spawning (see `run_and_retry` of the command).
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import context

import pytest

PRELOAD = ("torch", "torch_npu", "torch.testing._internal.common_distributed", "torch.distributed.tensor",
           "torch.distributed.fsdp")  # fmt: skip


class _RankProcess(context.ForkServerProcess):
    """A process that carries the environment of whoever starts it, as a spawned one would."""

    def start(self) -> None:
        """Take the environment along, then start."""
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        """Enter the carried environment, then run the target."""
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _RankContext(context.ForkServerContext):
    """What `multiprocessing.get_context("spawn")` returns under this plugin."""

    _name = "spawn"
    Process = _RankProcess  # type: ignore[assignment]


def pytest_configure(config: pytest.Config) -> None:
    """Answer "spawn" with the fork server (CPython 3.10 to 3.13 keep the contexts in this table)."""
    ranks = _RankContext()
    ranks.set_forkserver_preload(list(PRELOAD))
    multiprocessing.context._concrete_contexts["spawn"] = ranks  # type: ignore[attr-defined]
