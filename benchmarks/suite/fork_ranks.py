"""Pytest plugin: start a test's ranks by forking instead of spawning, as long as that is safe.

torch's multi-process test cases spawn a fresh interpreter per rank, four to eight times a test, and
importing torch and torch_npu costs each 3 seconds of CPU: on two cores the whole suite would take most
of a day. A process that has not touched an NPU yet may be forked instead; one that has keeps spawning.
What a library reads from the environment while it is imported comes too late for a forked rank, so
every failed test is repeated with real spawning (see `run_and_retry` of the command).
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import context, popen_fork, popen_spawn_posix

import pytest
import torch


class _RankProcess(context.SpawnProcess):
    """Forks from a process without NPU state, spawns from any other."""

    @staticmethod
    def _Popen(process_obj):  # multiprocessing's own hook and name
        forkable = not torch.npu.is_initialized()
        popen = popen_fork.Popen if forkable else popen_spawn_posix.Popen
        return popen(process_obj)


class _RankContext(context.SpawnContext):
    """What `multiprocessing.get_context("spawn")` returns under this plugin."""

    Process = _RankProcess  # type: ignore[assignment]


def pytest_configure(config: pytest.Config) -> None:
    """Put the context in place (CPython 3.10 to 3.13 keep them in this table)."""
    multiprocessing.context._concrete_contexts["spawn"] = _RankContext()  # type: ignore[attr-defined]
