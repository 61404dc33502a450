"""The job's store as the watch uses it: over a connection of its own, and never after its server has gone."""

from __future__ import annotations

import select
import socket
from datetime import timedelta
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError

SECONDS = 3.0
"""How long one question may take."""


class StoreGoneError(DiagnosticsError):
    """The job's store does not answer any more."""


class OwnStore:
    """A second connection to a torch.distributed Store: one that the program waits on answers nobody else.

    Beside it is a plain connection over which nothing is said. It ends when the server does, and is looked at
    before each question: torch writes a page of C++ frames on stderr for a question to a server that has
    gone, as it has at the end of every good run.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        """Connect.

        Raises:
            DiagnosticsError: this torch cannot make a second connection to this kind of store.
        """
        import torch.distributed as dist

        self._errors = (dist.DistError, RuntimeError)
        self._line = _line_to(_innermost(store))
        own = store.clone() if hasattr(store, "clone") else _second_client(_innermost(store))
        own.set_timeout(timedelta(seconds=SECONDS))
        self.client: Any = own
        """The second connection itself, of which others can be made; None once this is closed."""
        self._store: Any = dist.PrefixStore(prefix, own)

    def descriptors(self) -> list[int]:
        """Return what becomes readable when the server goes."""
        return [] if self._line is None or self._store is None else [self._line.fileno()]

    @property
    def is_there(self) -> bool:
        """Whether the server has not closed the connections."""
        if self._store is not None and self._line is not None:
            poll = select.poll()
            poll.register(self._line, select.POLLIN)
            if poll.poll(0):
                self.close()
        return self._store is not None

    def close(self) -> None:
        """Let go of the store."""
        self.client = self._store = None
        if self._line is not None:
            self._line.close()

    def add(self, key: str, amount: int) -> int:
        """Add to the number of a key, and return it."""
        return int(self._ask("add", key, amount))

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._ask("set", key, value)

    def get(self, key: str) -> str | None:
        """Return the value of a key; None if it is not set."""
        return self._ask("get", key).decode() if self._ask("check", [key]) else None

    def first(self, key: str, value: str) -> str:
        """Set a key unless it is set, and return its value."""
        return str(self._ask("compare_set", key, "", value).decode())

    def _ask(self, name: str, *arguments: Any) -> Any:
        if not self.is_there:
            raise StoreGoneError("The job's store has ended with the process that held it")
        try:
            return getattr(self._store, name)(*arguments)
        except self._errors as error:
            self.close()
            raise StoreGoneError(f"The job's store does not answer ({error})") from error


def _innermost(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _line_to(store: Any) -> socket.socket | None:
    """A connection to a TCPStore's server; None for a store without one."""
    if not hasattr(store, "port"):
        return None
    try:
        return socket.create_connection((store.host, store.port), timeout=SECONDS)
    except OSError as error:
        raise StoreGoneError(f"The job's store does not answer ({error})") from error


def _second_client(store: Any) -> Any:
    """Another client of a TCPStore, for a torch whose stores cannot be cloned."""
    import torch.distributed as dist

    if not isinstance(store, dist.TCPStore):
        raise DiagnosticsError(
            f"This torch cannot make a second connection to a {type(store).__name__}, which the hang watch "
            "needs; meet by tcp:// or env://, or set NPU_PLUGINS_HANG_WATCH=0"
        )
    return dist.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
