"""Batches of one replica where a data set does not divide: no sample is repeated to fill the last step.

accelerate completes the last batches of an epoch with samples from its beginning, so that a run on several
replicas trains on other data than a run on one. Here a replica's last batch has the samples that are left. A
replica with none left gets a `StandIn`: it is computed, since all ranks must take part, and counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from accelerate.data_loader import BatchSamplerShard, IterableDatasetShard
from accelerate.utils import concatenate, find_batch_size, slice_tensors
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from hf_integration.data.sampler import Replica
from hf_integration.data.sequences import NO_LOSS

LABELS = ("labels", "shift_labels")
KEPT = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
"""Settings of a DataLoader that do not say what is in a batch; older releases of torch lack the last."""


class StandIn(dict):
    """A batch of a replica that has no sample left: it has the shape of one and stands for none."""

    def without_labels(self) -> dict[str, Any]:
        """Return the batch with no target in it."""
        return {**self, **{key: torch.full_like(self[key], NO_LOSS) for key in LABELS if key in self}}

    def without_rows(self) -> dict[str, Any]:
        """Return the batch with no row in it, for what counts tokens."""
        return {key: value[:0] if isinstance(value, torch.Tensor) else value for key, value in self.items()}


class ReplicaBatches(BatchSamplerShard):
    """Every n-th batch of a batch sampler; the last one may be smaller, or stand for none.

    accelerate finds the sampler through it, to give it a seed and the epoch, also when a resumed run has put
    its own wrapper around this one.
    """

    def __init__(self, batches: BatchSampler, replica: Replica) -> None:
        """Take the batches of all replicas together, in their order."""
        super().__init__(batches, replica.size, replica.rank, even_batches=False)

    @property
    def sampler(self) -> Sampler | Iterable[Any]:
        """The sampler of single samples."""
        return self.batch_sampler.sampler

    @sampler.setter
    def sampler(self, sampler: Sampler) -> None:
        self.batch_sampler.sampler = sampler

    def __len__(self) -> int:
        whole, rest = divmod(len(self.batch_sampler), self.num_processes)
        return whole + bool(rest and not self.drop_last)

    @property
    def ends_with_stand_in(self) -> bool:
        """Whether the last batch of an epoch stands for none on this replica."""
        rest = len(self.batch_sampler) % self.num_processes
        return not self.drop_last and 0 < rest <= self.process_index

    def __iter__(self) -> Iterator[list[Any]]:
        together: list[list[Any]] = []
        for batch in self.batch_sampler:
            together.append(batch)
            if len(together) == self.num_processes:
                yield together[self.process_index]
                together = []
        if together and not self.drop_last:
            there = self.process_index < len(together)
            yield together[self.process_index] if there else together[-1][:1]


class ByEpoch(Sampler):
    """A sampler that draws its order, and the same one in the same epoch, also of a run that begins there."""

    def __init__(self, sampler: Any, seed: int) -> None:
        """Take a sampler that draws from its ``generator``, and the seed of the first epoch."""
        self._sampler, self._seed = sampler, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to draw next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        self._sampler.generator.manual_seed(self._seed + self.epoch)
        return iter(self._sampler)


class _Copy(NamedTuple):
    """A sample of another replica, for a replica that has none left."""

    sample: Any


class ReplicaRows(IterableDatasetShard):
    """The samples of one replica from a data set without places, all of which each rank reads."""

    def __init__(self, samples: IterableDataset, batch_size: int, drop_last: bool, replica: Replica) -> None:
        """Take the samples of all replicas, in their order."""
        super().__init__(samples, batch_size, drop_last, replica.size, replica.rank)
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        own = slice(self.process_index * self.batch_size, (self.process_index + 1) * self.batch_size)
        together: list[Any] = []
        for sample in self.dataset:
            together.append(sample)
            if len(together) == self.batch_size * self.num_processes:
                yield from together[own]
                together = []
        if together and not self.drop_last:
            yield from together[own] or [_Copy(together[0])]


class _Collate:
    """Collates, and says of a copy what it is."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        if isinstance(samples[0], _Copy):
            return StandIn(self._collate([samples[0].sample]))
        return self._collate(samples)


def of_replica(loader: DataLoader, replica: Replica) -> DataLoader:
    """Return a loader of the batches of ``replica``.

    Args:
        loader: of all replicas' batches, one after the other.
        replica: see `Replica.of`.
    """
    kept = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
    if isinstance(loader.dataset, IterableDataset):
        size = loader.batch_size or 1
        rows = ReplicaRows(loader.dataset, size, loader.drop_last, replica)
        return DataLoader(rows, batch_size=size, collate_fn=_Collate(loader.collate_fn), **kept)
    batches = ReplicaBatches(loader.batch_sampler, replica)
    return DataLoader(loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn, **kept)


class StreamBatches:
    """Evaluation batches of one replica from a stream, all of which each rank reads.

    The loader's ``remainder`` is set with its last batch, as accelerate sets it where it knows a length or
    deals batches from one rank to all: so nothing that only makes up an equal number of rows is counted.
    """

    def __init__(self, loader: Any, batch_size: int, replica: Replica) -> None:
        """Take accelerate's loader of batches of all replicas together, and the size of one replica's."""
        self._loader, self._size, self._replica = loader, batch_size, replica

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        own = slice(self._replica.rank * self._size, (self._replica.rank + 1) * self._size)
        for batch in self._loader:
            rows = find_batch_size(batch)
            if self._loader.end_of_dataloader:
                self._loader.remainder = rows
            if self._replica.size == 1:
                yield batch
                continue
            copies = -(-self._size * self._replica.size // rows)
            yield slice_tensors(concatenate([batch] * copies), own)


def stream_for_evaluation(loader: DataLoader, replicas: int) -> DataLoader:
    """Return a loader of batches of all replicas together, for `StreamBatches`."""
    kept = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
    size = (loader.batch_size or 1) * replicas
    return DataLoader(
        loader.dataset, batch_size=size, drop_last=loader.drop_last, collate_fn=loader.collate_fn, **kept
    )


def ends_with_stand_in(loader: Any) -> bool:
    """Return whether the last batch of ``loader``, however wrapped, stands for none."""
    batches = getattr(loader, "batch_sampler", None)
    while batches is not None and not isinstance(batches, ReplicaBatches):
        batches = getattr(batches, "batch_sampler", None)
    return batches is not None and batches.ends_with_stand_in
