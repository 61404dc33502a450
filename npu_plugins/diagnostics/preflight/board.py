"""Messages of all ranks to the first one and its answers, over the job's store: no group is needed for it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from npu_plugins.diagnostics.errors import DiagnosticsError

LOOK = 0.05
"""Seconds between two looks at processes that may have ended."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
"""Seconds between two looks for a message."""


class StoreLostError(DiagnosticsError):
    """The store cannot be reached, or the first rank does not answer: one sentence that says which."""


class Received(NamedTuple):
    """A message and when the first rank saw it, in seconds since 1970 by its clock."""

    value: Any
    seen: float


class Board:
    """What ranks tell each other.

    Every message has a topic. The ranks `post`, rank 0 `collect`s and then `answer`s, the others wait for the
    answer. Values are JSON.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, name: str) -> None:
        """Take a store that nothing else uses at the same time: a `clone()` of the job's.

        Args:
            store: of the job.
            rank: of this process.
            world_size: ranks of the job.
            name: of the board; every board of one name has new topics.
        """
        turn = dist.PrefixStore(f"npu_plugins.diagnostics.{name}", store).add(f"boards of rank {rank}", 1)
        self._store = dist.PrefixStore(f"npu_plugins.diagnostics.{name}.{turn}", store)
        self._origin, self._turn = (store, name), turn
        self.rank, self.world_size = rank, world_size

    def another_connection(self) -> dist.Store:
        """Return the board's keys over a connection of its own, for another thread."""
        store, name = self._origin
        return dist.PrefixStore(f"npu_plugins.diagnostics.{name}.{self._turn}", store.clone())

    def post(self, topic: str, value: Any) -> None:
        """Tell rank 0 something; once for each topic.

        Raises:
            StoreLostError: the store is gone.
        """
        message = json.dumps([self.rank, value])
        try:
            place = self._store.add(f"{topic} count", 1)
            self._store.set(f"{topic} {place}", message)
        except RuntimeError as error:
            raise StoreLostError(self._lost(topic, error)) from error

    def collect(
        self, topic: str, limit: float, ended: Callable[[Collection[int]], Collection[int]] = lambda _: ()
    ) -> dict[int, Received]:
        """Return the messages of a topic by rank, as soon as all ranks have posted or have ended.

        Args:
            topic: of the messages.
            limit: seconds to wait; then the messages that are there are returned.
            ended: of some ranks, those whose processes are known to have ended; a message that they posted
                before counts.
        """
        deadline = time.monotonic() + limit
        found: dict[int, Received] = {}
        place = 1
        while len(found) < self.world_size:
            left = deadline - time.monotonic()
            if self._there(f"{topic} {place}", min(LOOK, max(left, 0.001))):
                self._take(f"{topic} {place}", found)
                place += 1
                continue
            waiting = [rank for rank in range(self.world_size) if rank not in found]
            if left <= 0 or len(ended(waiting)) == len(waiting):
                break
        # A rank that ended between taking a place and filling it leaves a gap.
        for later in range(place, self._store.add(f"{topic} count", 0) + 1):
            if self._store.check([f"{topic} {later}"]):
                self._take(f"{topic} {later}", found)
        return found

    def answer(self, topic: str, value: Any) -> None:
        """As rank 0, tell all ranks something."""
        self._store.set(f"{topic} answer", json.dumps(value))

    def wait_for_answer(self, topic: str, limit: float, gone: Callable[[], bool] = lambda: False) -> Any:
        """Return what rank 0 answers.

        Args:
            topic: of the answer.
            limit: seconds to wait.
            gone: whether the process of rank 0 is known to have ended.

        Raises:
            StoreLostError: there is no answer, or the store is gone.
        """
        deadline = time.monotonic() + limit
        while True:
            # Asked before the last look: who answers may go right afterwards.
            has_gone, left = gone(), deadline - time.monotonic()
            try:
                if self._there(f"{topic} answer", min(LOOK, max(left, 0.001))):
                    return json.loads(self._store.get(f"{topic} answer"))
            except RuntimeError as error:
                raise StoreLostError(self._lost(topic, error)) from error
            if has_gone:
                raise StoreLostError(f"the process of rank 0 has ended in the phase {topic!r}")
            if left <= 0:
                raise StoreLostError(f"rank 0 has not answered for {limit:.0f} s in the phase {topic!r}")

    def _there(self, key: str, seconds: float) -> bool:
        """Look for a key until it is there or the time is over.

        torch's own wait would print warnings of its sockets whenever a time is over.
        """
        deadline, pause = time.monotonic() + seconds, SHORTEST_PAUSE
        while not self._store.check([key]):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return True

    def _take(self, key: str, found: dict[int, Received]) -> None:
        rank, value = json.loads(self._store.get(key))
        found.setdefault(rank, Received(value, time.time()))

    def _lost(self, topic: str, error: Exception) -> str:
        told = str(error).splitlines()[0]
        return f"the job's store broke off in the phase {topic!r}, as it does when rank 0 ends ({told})"


def open_store(environ: Mapping[str, str] = os.environ, limit: float = 60.0) -> dist.Store:
    """Return a connection to the store that the job of this launched rank will come together with.

    No other rank is waited for, so that ranks which are missing can be named. Keep it until the default
    process group is there: rank 0 may serve it, and torch then takes the same server.

    Args:
        environ: with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as launchers set them.
        limit: seconds to reach it.

    Raises:
        StoreLostError: it cannot be reached, or a variable is missing.
    """
    lacking = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if lacking:
        raise StoreLostError(
            f"{lacking[0]} is not set, without which ranks cannot meet; start them with deepspeed or torchrun"
        )
    host, rank = environ["MASTER_ADDR"], int(environ["RANK"])
    port, deadline = int(environ["MASTER_PORT"]), time.monotonic() + limit
    # With torchrun's own store, no rank serves it (torch/distributed/rendezvous.py).
    serves = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not serves:
        _wait_for_server(host, port, rank, deadline)
    try:
        return dist.TCPStore(
            host,
            port,
            int(environ["WORLD_SIZE"]),
            is_master=serves,
            timeout=timedelta(seconds=limit),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        raise StoreLostError(
            f"rank {rank} cannot {'serve' if serves else 'use'} the job's store at {host}:{port} "
            f"({str(error).splitlines()[0]}); choose another port with --master_port"
        ) from error


def _wait_for_server(host: str, port: int, rank: int, deadline: float) -> None:
    """Wait until a port answers; torch would print stacks of C++ with each vain try."""
    limit = deadline - time.monotonic()
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(left, 0.001)).close()
            return
        except OSError as error:
            if left <= 0:
                raise StoreLostError(
                    f"rank {rank} cannot reach the job's store at {host}:{port}, which rank 0 serves, within "
                    f"{limit:.0f} s ({error}); look whether rank 0 has started, and whether MASTER_ADDR is "
                    "its host"
                ) from error
        time.sleep(min(LONGEST_PAUSE, max(left, 0.001)))
