"""Who is still there, asked when communication has failed: a rank that others wait for is named by all."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.pipeline.control import Control
from npu_plugins.pipeline.errors import PeerLostError, StageError

_LOG = logging.getLogger(__name__)
PAUSE = 0.1
"""Seconds between two looks."""


class RollCall:
    """Finds the ranks that are gone or hang.

    A transfer that fails tells of a neighbour, which may itself only wait for the rank that has gone. So a
    rank on which communication fails says in the job's store that it is there, and looks who else is:

    - Every process keeps a port open, which nobody serves. A connection to it is refused as soon as the
      process has ended, however it ended, and at once.
    - A rank that neither says so in the store, nor has ended, hangs.
    """

    def __init__(self, control: Control, timeout: float, name_of: Callable[[int], str]) -> None:
        """Open the port; every rank of the world must do so together.

        Args:
            control: connects the ranks.
            timeout: of the groups, in seconds. The others may notice a tenth of it later, within 2 to 60 s.
            name_of: a global rank → its name in sentences.
        """
        self.patience = min(60.0, max(2.0, timeout / 10))
        self._name_of = name_of
        family, address = _own_address()
        self._door = socket.create_server((address, 0), family=family)
        self._doors: list[tuple[int, tuple[str, int]]] = control.everyone(
            (int(family), self._door.getsockname()[:2])
        )
        # torch 2.13 has no public way to reach the default group's store; a port makes the names new.
        store = dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore(f"npu_plugins.pipeline.roll_call {self._doors[0][1]}", store)
        self._rank = dist.get_rank()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Turn what is raised within, if another rank is to blame for it, into an error that names the rank.

        Raises:
            PeerLostError: instead of a failure of communication, or of the device, while a rank is missing.
        """
        try:
            yield
        except (StageError, DiagnosticsError):  # which every rank raises
            raise
        except (RuntimeError, PeerLostError) as error:
            told = _told(error)
            # At once: torch_npu's watchdog ends a process soon after HCCL has failed in it.
            _LOG.error("rank %d: %s", self._rank, told)
            missing = self.missing(wait=isinstance(error, PeerLostError) or bool(_COMMUNICATION.search(told)))
            if missing:
                raise PeerLostError(f"{missing}; seen here as: {told}") from error
            raise

    def close(self) -> None:
        """Give the port back."""
        self._door.close()

    def missing(self, wait: bool = True) -> str:
        """Return a clause that names the ranks that have ended or hang; empty where all are there.

        Args:
            wait: whether ranks are given time to say that they are there; else only ended ones are found.
        """
        deadline = time.monotonic() + (self.patience if wait else 0.0)
        present = {self._rank}
        keeps_store = _rank_0_keeps_the_store()
        # Without its keeper the store is no use, and is asked for seconds before it says so.
        store = not (keeps_store and self._rank != 0 and self._ended(0)) and self._say("here")
        while True:
            present |= self._present() if store else set()
            ended = [rank for rank in range(len(self._doors)) if rank not in present and self._ended(rank)]
            silent = [rank for rank in range(len(self._doors)) if rank not in present and rank not in ended]
            # Who keeps the store stays a while, so that the others can see who has spoken.
            if (
                time.monotonic() >= deadline
                or not silent
                or (ended and not (keeps_store and self._rank == 0))
            ):
                break
            time.sleep(PAUSE)
        if ended:
            return f"{self._names(ended)} ended in the middle of the job; look for the first error there"
        if silent and wait:
            return f"{self._names(silent)} hung or was cut off: it did not answer in {self.patience:g} s"
        return ""

    def _names(self, ranks: list[int]) -> str:
        return " and ".join(map(self._name_of, ranks))

    def _say(self, word: str) -> bool:
        """Tell the others; return whether the store is still there."""
        try:
            self._store.set(str(self._rank), word)
        except RuntimeError:  # its keeper has gone, whose port tells
            return False
        return True

    def _present(self) -> set[int]:
        try:
            return {rank for rank in range(len(self._doors)) if self._store.check([str(rank)])}
        except RuntimeError:
            return set()

    def _ended(self, rank: int) -> bool:
        family, address = self._doors[rank]
        with socket.socket(family, socket.SOCK_STREAM) as visitor:
            visitor.settimeout(1.0)
            try:
                visitor.connect(address)
            except ConnectionError:
                return True
            except OSError:  # no way there, or no answer: that is no proof
                return False
        return False


_COMMUNICATION = re.compile(r"gloo|hccl|\bEI00\d\d\b", re.IGNORECASE)
"""What failures of the two backends speak of."""


def _told(error: BaseException) -> str:
    """Return the first lines of an error and of its causes."""
    lines = []
    cause: BaseException | None = error
    while cause is not None:
        lines += str(cause).splitlines()[:1]
        cause = cause.__cause__
    return "; because of: ".join(dict.fromkeys(lines))


def _rank_0_keeps_the_store() -> bool:
    """Whether the store ends with rank 0; torchrun keeps it in a process of its own."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _own_address() -> tuple[socket.AddressFamily, str]:
    """Return the address under which this machine reaches the job's master, and so the other ranks."""
    master = os.environ.get("MASTER_ADDR", "localhost")
    family, _, _, _, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return family, str(probe.getsockname()[0])
