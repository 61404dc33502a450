"""Pytest plugin: start a test's ranks by forking a process that has torch_npu imported, instead of spawning.

torch's multi-process test cases spawn a fresh interpreter per rank, four to eight times a test, and
importing torch and torch_npu costs each 3 seconds of CPU: on two cores the whole suite would take most
of a day. The start method "spawn" is therefore answered by Python's fork server, forked from this
process before it touches an NPU. A rank still gets the environment its test has set; what a library
reads from it while it is imported comes too late, so every failed test is repeated with real spawning
(see `run_and_retry` of the command).
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
from multiprocessing import connection, context, forkserver

import pytest


class _RankProcess(context.ForkServerProcess):
    """A process that carries the environment of whoever starts it, as a spawned one would."""

    def start(self) -> None:
        """Take the environment along, then start."""
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        """Enter the carried environment, run the target, and end as an interpreter of its own would."""
        os.environ.clear()
        os.environ.update(self._environment)
        try:
            super().run()
        finally:
            atexit._run_exitfuncs()  # a forked process skips them; torch_npu ends its process groups there


class _RankContext(context.ForkServerContext):
    """What `multiprocessing.get_context("spawn")` returns under this plugin."""

    _name = "spawn"
    Process = _RankProcess  # type: ignore[assignment]


def start_fork_server() -> None:
    """Make a fork of this process Python's fork server, which would otherwise import everything anew."""
    server = forkserver._forkserver  # CPython 3.10 to 3.13: the one instance, with its address and pipe
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(connection.arbitrary_address("AF_UNIX"))
    listener.listen()
    alive_read, alive_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(alive_write)
            forkserver.main(listener.detach(), alive_read, [])
        finally:
            os._exit(0)
    os.close(alive_read)
    server._forkserver_address = listener.getsockname()
    server._forkserver_alive_fd = alive_write
    server._forkserver_pid = pid
    listener.close()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the server once the test file is imported, so that its ranks need not do it either.

    A file that touches an NPU while it is imported keeps real spawning.
    """
    import torch

    if not torch.npu.is_initialized():
        # CPython's table of start methods, the same from 3.10 to 3.13.
        multiprocessing.context._concrete_contexts["spawn"] = _RankContext()  # type: ignore[attr-defined]
        start_fork_server()
