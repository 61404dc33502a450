"""Ranks of a pipeline as threads of one process, with a transport that matches strictly by order."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from npu_plugins.pipeline.errors import PeerLostError
from npu_plugins.pipeline.p2p import Transfer

PATIENCE = 20.0


class Hub:
    """What the threads share: for each ordered pair of ranks the sends, in the order of their posting."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sent: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        self.awaited: dict[tuple[int, int], int] = defaultdict(int)
        self._words: dict[tuple[int, int, int], queue.Queue[Any]] = defaultdict(queue.Queue)

    def words(self, sender: int, receiver: int, tag: int) -> queue.Queue[Any]:
        """What one rank says to another; under the lock, or both could make the queue, and wait on two."""
        with self.changed:
            return self._words[sender, receiver, tag]


class Ticket:
    """A posted receive: it gets the send of the same number, whatever that is."""

    def __init__(self, hub: Hub, pair: tuple[int, int], transfer: Transfer) -> None:
        self.hub, self.pair, self.transfer = hub, pair, transfer
        self.number = hub.awaited[pair]
        hub.awaited[pair] += 1
        self.done = False

    def wait(self) -> None:
        """Copy what came; as strict as HCCL about what that is."""
        if self.done:
            return
        with self.hub.changed:
            here = self.hub.changed.wait_for(lambda: len(self.hub.sent[self.pair]) > self.number, PATIENCE)
        if not here:
            raise PeerLostError(f"{self.transfer.what} waits for ever")
        found = self.hub.sent[self.pair][self.number]
        kinds = {"RA": "SA", "RG": "SG"}
        assert found.what[:2] == kinds[self.transfer.what[:2]], f"{self.transfer.what} got {found.what}"
        for mine, theirs in zip(self.transfer.tensors, found.tensors, strict=True):
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
            mine.copy_(theirs)
        self.done = True


class Sent:
    """A posted send, which is complete at once."""

    def wait(self) -> None:
        """Return."""


class LocalTransport:
    """Stands for `npu_plugins.pipeline.p2p.Transport`."""

    def __init__(self, hub: Hub, rank: int, matches_in_any_order: bool = False) -> None:
        self.hub, self.rank, self.matches_in_any_order = hub, rank, matches_in_any_order

    def post(self, transfers: Sequence[Transfer]) -> list[Any]:
        """Post an exchange."""
        handles: list[Any] = []
        with self.hub.changed:
            for transfer in transfers:
                if transfer.sends:
                    copies = [tensor.clone() for tensor in transfer.tensors]
                    self.hub.sent[self.rank, transfer.peer].append(transfer._replace(tensors=copies))
                    handles.append(Sent())
                else:
                    handles.append(Ticket(self.hub, (transfer.peer, self.rank), transfer))
            self.hub.changed.notify_all()
        return handles

    def finish(self) -> None:
        """Nothing is open."""


class LoggingTransport(LocalTransport):
    """Writes down what is posted, as in SA3, and when a send is waited for, as in waited-3."""

    def __init__(self, hub: Hub, rank: int, matches_in_any_order: bool, log: list[str]) -> None:
        super().__init__(hub, rank, matches_in_any_order)
        self.log = log

    def post(self, transfers: Sequence[Transfer]) -> list[Any]:
        """Post an exchange."""
        self.log += [transfer.what.split("@")[0] for transfer in transfers]
        handles = super().post(transfers)
        for transfer, handle in zip(transfers, handles, strict=True):
            if transfer.sends:
                word = f"waited-{transfer.what[2:].split('@')[0]}"
                handle.wait = lambda word=word: self.log.append(word)
        return handles


class LocalControl:
    """Stands for the part of `npu_plugins.pipeline.control.Control` that the executor uses."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank = hub, rank
        self.described = 0

    def send(self, value: Any, peer: int, tag: int) -> list[Any]:
        """Put a value where the peer looks for it."""
        self.described += 1
        self.hub.words(self.rank, peer, tag).put(value)
        return []

    def receive(self, peer: int, tag: int) -> Any:
        """Wait for it."""
        return self.hub.words(peer, self.rank, tag).get(timeout=PATIENCE)


def on_threads(ranks: int, body: Callable[[int], Any]) -> list[Any]:
    """Run `body(rank)` on threads and return the results; the first error of any is raised."""
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def same(found: torch.Tensor | None, wanted: torch.Tensor | None) -> bool:
    """Whether two gradients are equal but for rounding."""
    assert found is not None and wanted is not None
    return torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)
