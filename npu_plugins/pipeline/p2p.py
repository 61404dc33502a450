"""Transfers between the ranks of a pipeline: posted in the schedule's order, waited for when needed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from npu_plugins.pipeline.errors import PeerLostError

OPEN_SENDS = 2
"""Sends to one peer in one direction that may be unfinished at once. Each holds its tensor; the receiver is
one action behind or so, and a third send waits only where something is late."""


class Transfer(NamedTuple):
    """One activation or gradient on its way."""

    peer: int
    """Rank within the pipeline's group."""
    tensors: list[torch.Tensor]
    """To send, or room to receive into."""
    sends: bool
    what: str
    """The action's string form, for errors."""


class Handle:
    """A transfer that was posted. Its tensors are kept until it has been waited for."""

    def __init__(self, transfer: Transfer, works: Sequence[Any]) -> None:
        self.transfer: Transfer | None = transfer
        self._works = works
        self._what, self._peer = transfer.what, transfer.peer

    def wait(self) -> None:
        """Wait until the tensors may be used (on a device: let its current stream wait).

        Raises:
            PeerLostError: the peer has gone, or did not take part within the group's timeout.
        """
        works, self._works = self._works, ()
        for work in works:
            try:
                work.wait()
            except RuntimeError as error:
                raise PeerLostError(
                    f"{self._what}: rank {self._peer} of the pipeline did not take part in the transfer "
                    f"({str(error).splitlines()[0]}); look for the first error on that rank"
                ) from error
        self.transfer = None


class Transport:
    """Posts exchanges on a pipeline's process group.

    All transfers of an exchange go out together with `batch_isend_irecv`: HCCL matches by order, not by tag,
    and two ranks that each wait for their own send first would wait for ever. An exchange is one call per
    tensor on backends without coalescing, which match by order as well.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        """Take the group; None where the pipeline has one rank. All ranks of the group call this together."""
        self._group = group
        self.matches_in_any_order = group is None or dist.get_backend(group) == "gloo"
        """Whether a receive may be posted before its turn among the sends: gloo matches each direction by
        itself, while HCCL's stream works off all that was posted in order."""
        self._sends: dict[tuple[int, str], deque[Handle]] = defaultdict(deque)
        if group is not None:  # a group's first call must be one of all its ranks
            dist.all_reduce(torch.zeros(1, device=device), group=group)

    def post(self, transfers: Sequence[Transfer]) -> list[Handle]:
        """Post the transfers of one exchange in this order, without waiting for them."""
        operations: list[dist.P2POp] = []
        spans: list[tuple[int, int]] = []
        for transfer in transfers:
            start = len(operations)
            operation = dist.isend if transfer.sends else dist.irecv
            operations += [
                dist.P2POp(operation, _on_wire(tensor), group=self._group, group_peer=transfer.peer)
                for tensor in transfer.tensors
                if tensor.numel()
            ]
            spans.append((start, len(operations)))
        works = dist.batch_isend_irecv(operations) if operations else []
        handles = []
        for transfer, (start, stop) in zip(transfers, spans, strict=True):
            # A backend that coalesces returns one work for all of them.
            own = works[start:stop] if len(works) == len(operations) else works
            handle = Handle(transfer, own)
            handles.append(handle)
            if transfer.sends:
                self._keep(transfer, handle)
        return handles

    def finish(self) -> None:
        """Wait for all sends.

        Raises:
            PeerLostError: as `Handle.wait`.
        """
        for handles in self._sends.values():
            while handles:
                handles.popleft().wait()

    def _keep(self, transfer: Transfer, handle: Handle) -> None:
        handles = self._sends[transfer.peer, transfer.what[:2]]
        handles.append(handle)
        if len(handles) > OPEN_SENDS:
            handles.popleft().wait()


def _on_wire(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a dtype that every backend can send."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
