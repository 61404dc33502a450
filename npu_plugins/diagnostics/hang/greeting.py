"""One name for what the ranks of a process group tell each other, new for each group.

torchrun keeps its store when it starts the ranks anew (`--max-restarts`; torch 2.13,
elastic/rendezvous/dynamic_rendezvous.py): an alarm of those before, their processes and their ends are still
in it, and neither the number of restarts nor a count of groups is alike on all nodes. So each rank asks by a
word that nobody has used, and rank 0 answers it.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from npu_plugins.diagnostics.hang.store import OwnStore, StoreGoneError

_PAUSE = 0.05
_PREFIX = "npu_plugins.hang.greeting"


class Greeting:
    """Comes to a name, one look after another; only the watch's thread may."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        """Connect.

        Args:
            store: the torch.distributed Store of the job.
            rank: of this process.
            world_size: of the job.

        Raises:
            DiagnosticsError: this torch cannot make a second connection to this kind of store.
        """
        self.name: str | None = None
        """What all ranks of the group call it; None until this one knows."""
        self.rank, self.world_size, self._others = rank, world_size, range(1, world_size)
        self._word = uuid.uuid4().hex
        self._store = OwnStore(store, _PREFIX)
        self._client = self._store.client
        self._heard: dict[int, str] = {}
        self._asked = False
        self._done = False

    def look(self) -> str | None:
        """Ask, or on rank 0 answer who asks, until all know the name; returns it as soon as it is known.

        Raises:
            StoreGoneError: the store has ended.
        """
        if not self._done:
            try:
                done = self._answer() if self.rank == 0 else self._ask()
            except StoreGoneError:
                self.close()
                raise
            if done:
                self._end()
        return self.name

    def wait(self, seconds: float) -> str | None:
        """Look until the name is known, for so long at most.

        Raises:
            StoreGoneError: the store has ended.
        """
        deadline = time.monotonic() + seconds
        while self.look() is None and not self._done and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return self.name

    def take_client(self) -> Any:
        """Return a connection to the store from which the board's can be made; it is not kept here."""
        client, self._client = self._client, None
        return client

    def close(self) -> None:
        """Let go of the store; a name that is not known by now stays so."""
        self._end()
        self._client = None

    def _end(self) -> None:
        self._done = True
        self._store.close()

    def _answer(self) -> bool:
        """Answer every rank that asks; returns whether all have thanked."""
        self.name = self._word
        for rank in self._others:
            word = self._store.get(f"rank {rank}")
            if word is not None and word != self._heard.get(rank):
                self._heard[rank] = word  # may be one of a group before; then nobody reads the answer
                self._store.set(f"answer to {word}", self.name)
        return self._store.add(f"thanks for {self.name}", 0) == len(self._others)

    def _ask(self) -> bool:
        if not self._asked:
            self._store.set(f"rank {self.rank}", self._word)
            self._asked = True
        self.name = self._store.get(f"answer to {self._word}")
        if self.name is None:
            return False
        self._store.add(f"thanks for {self.name}", 1)
        return True
