"""The ranks that save or load a checkpoint together: what they tell each other, and who does which file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.comm import ProcessMesh

T = TypeVar("T")


class Ranks:
    """All ranks of a job, or a single process.

    Every method but `share` and the properties is a collective.
    """

    def __init__(self, mesh: ProcessMesh | None = None) -> None:
        """Take the ranks of a mesh, which are the whole job's; None: this process alone."""
        self._mesh = mesh if mesh is not None and mesh.config.world_size > 1 else None

    @property
    def rank(self) -> int:
        """This rank, 0 for a single process."""
        return 0 if self._mesh is None else self._mesh.global_rank

    @property
    def size(self) -> int:
        """How many there are."""
        return 1 if self._mesh is None else self._mesh.config.world_size

    def tell(self, value: Any) -> list[Any]:
        """Return every rank's value in the order of ranks; anything that JSON holds, copied through it."""
        text = json.dumps(value).encode()
        if self._mesh is None:
            return [json.loads(text)]
        device = self._mesh.device
        length = torch.tensor([len(text)], device=device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        dist.all_gather(lengths, length)
        longest = max(int(each) for each in lengths)
        padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8).to(device)
        everyone = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(everyone, padded)
        return [json.loads(bytes(each.tolist())) for each in everyone]

    def first(self, value: Any) -> Any:
        """Return the first rank's value; the others' are not looked at."""
        return self.tell(value if self.rank == 0 else None)[0]

    def share(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the names of the files that this rank takes, of all; each rank gets about as many bytes."""
        loads = [0] * self.size
        mine = []
        for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
            lightest = loads.index(min(loads))
            loads[lightest] += size + 1  # an empty file is work as well
            if lightest == self.rank:
                mine.append(name)
        return mine

    def together(self, action: Callable[[], T]) -> T:
        """Run an action on every rank and return its result, once it has succeeded on all of them.

        Args:
            action: must not communicate in a way that hangs when another rank fails.

        Raises:
            CheckpointError: on every rank, the same words, if it failed on one.
        """
        result: Any = None

        def run() -> None:
            nonlocal result
            result = action()

        problem = attempt(run)
        told = self.tell("" if problem is None else sentence(problem))
        failed = {text: rank for rank, text in reversed(list(enumerate(told))) if text}
        if failed:
            text, rank = min(failed.items(), key=lambda item: item[1])
            more = f" (and {len(failed) - 1} other ranks failed in other ways)" if len(failed) > 1 else ""
            raise CheckpointError(f"rank {rank}: {text}{more}") from problem
        return result


def attempt(action: Callable[[], Any]) -> Exception | None:
    """Run an action; return what it raised."""
    try:
        action()
    except Exception as error:  # whatever it is, the other ranks wait for this one and are told
        return error
    return None


def sentence(error: Exception) -> str:
    """Return an error in one line, for other ranks."""
    text = " ".join(str(error).split())
    return text if isinstance(error, CheckpointError) else f"{type(error).__name__}: {text}"
