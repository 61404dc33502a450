"""Weight gradients that run later than the backward pass that made them possible.

Zero-bubble pipelines (arXiv 2401.10241 §2) split a backward pass in I, the input gradient that the stage before
waits for, and W, the weight gradients, which fill what would be idle time. The split here is a store of
closures: the backward pass of a layer puts its W into the store, under the stage and micro-batch at work, and
the schedule runs it when it wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from npu_plugins.tensor_parallel.errors import TensorParallelError

Key = tuple[int, int]


class WeightGradients:
    """The W of layers that were given this store, by (stage, micro-batch).

    ```
    store = WeightGradients()
    layer = ColumnParallelLinear(h, 4 * h, group=group, weight_gradients=store)
    with store.at(stage, micro_batch):
        loss.backward()             # I only
    store.run(stage, micro_batch)   # W
    ```
    Outside `at` the layers do their whole backward pass at once, as without a store.
    """

    def __init__(self) -> None:
        self._works: dict[Key, list[Callable[[], None]]] = {}
        self._key: Key | None = None

    @property
    def collecting(self) -> bool:
        """Whether a backward pass now leaves its W to the store."""
        return self._key is not None

    @property
    def pending(self) -> list[Key]:
        """(stage, micro-batch) whose W has not run yet, oldest first."""
        return list(self._works)

    @contextmanager
    def at(self, stage: int, micro_batch: int) -> Iterator[None]:
        """Backward passes within leave their W under this stage and micro-batch."""
        outer, self._key = self._key, (stage, micro_batch)
        self._works.setdefault((stage, micro_batch), [])
        try:
            yield
        finally:
            self._key = outer

    def put(self, work: Callable[[], None]) -> None:
        """Keep one layer's W; called by the layers' backward pass."""
        if self._key is None:
            raise TensorParallelError("WeightGradients: put outside of `with store.at(stage, micro_batch)`")
        self._works[self._key].append(work)

    @torch.no_grad()
    def run(self, stage: int, micro_batch: int) -> None:
        """Run the W of one stage and micro-batch, in the order its backward pass met the layers.

        Raises:
            TensorParallelError: there is none: its backward pass has not run, or its W has run already.
        """
        works = self._works.pop((stage, micro_batch), None)
        if works is None:
            raise TensorParallelError(
                f"WeightGradients: nothing is pending for stage {stage}, micro-batch {micro_batch} (pending: "
                f"{self.pending or 'none'}); run its backward pass within `with store.at({stage}, {micro_batch})` "
                "first, and W once only"
            )
        for work in works:
            work()
