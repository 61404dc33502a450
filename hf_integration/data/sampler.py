"""Which samples a rank reads: its replica's share of each global batch, as all ranks of the replica.

The order is the one that the Trainer of transformers 5.24 has on one process (accelerate's
``SeedableRandomSampler``): each epoch a permutation drawn with ``seed + epoch``, cut into global batches.
However many replicas share the work, one optimizer step therefore sees the same samples, and losses compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from hf_integration.data.sequences import NO_LOSS
from hf_integration.errors import TrainingInputError


class Axes(Protocol):
    """What a `npu_plugins.comm.mesh.ProcessMesh` says of its axes."""

    def rank(self, axis: str) -> int:
        """Return this rank's place along ``axis``."""

    def size(self, axis: str) -> int:
        """Return the number of ranks along ``axis``."""


class Replica(NamedTuple):
    """Which of how many replicas a rank belongs to; all ranks of a tp × pp block belong to one."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, mesh: Axes) -> Replica:
        """Return the replica of this rank of ``mesh``: its place on the data-parallel axis."""
        return cls(mesh.rank("dp"), mesh.size("dp"))


@dataclass(frozen=True)
class Filler:
    """Stands in a batch for a sample that is not there: it has the shape of sample ``index`` and no label.

    Deliberately no integer, which a data set that does not know of fillers would take for a sample.
    """

    index: int


class ReplicaBatchSampler(Sampler[list[Any]]):
    """Batches of indices for one replica.

    Every replica gets as many batches as the others, all of ``batch_size``. The last global batch of an epoch
    may be incomplete. No sample is taken twice to complete it: what is missing is filled with `Filler`, so
    that the loss, a sum over tokens divided by their number, is that of the samples that are there. With
    ``drop_last`` it is left out.

    Args:
        num_samples: samples in the data set.
        batch_size: samples in a batch of one replica (a micro-batch).
        replica: whose batches these are.
        seed: of the order; epoch ``n`` is drawn with ``seed + n``.
        shuffle: False keeps the order of the data set.
        drop_last: leave an incomplete global batch out.

    Raises:
        TrainingInputError: there is no batch at all.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        replica: Replica,
        *,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= replica.rank < replica.size:
            raise ValueError(f"replica {replica.rank} of {replica.size} does not exist")
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.epoch = 0
        self.first_batch = 0
        self._num_samples = num_samples
        self._replica = replica
        self._seed = seed
        self._shuffle = shuffle
        if len(self) == 0:
            raise TrainingInputError(
                f"{num_samples} sequences are fewer than one batch of {batch_size} × {replica.size} "
                "replicas; give more text, lower --per_device_train_batch_size, or leave out "
                "--dataloader_drop_last"
            )

    @property
    def global_batch_size(self) -> int:
        """Samples that all replicas read together at a time."""
        return self.batch_size * self._replica.size

    @property
    def leaves_one_empty(self) -> bool:
        """Whether the last batch of an epoch is, for some replica, all `Filler`: it has no label at all."""
        rest = self._num_samples % self.global_batch_size
        return 0 < rest <= self.global_batch_size - self.batch_size and not self.drop_last

    def __len__(self) -> int:
        """Return the number of batches in an epoch, whichever is the first to be read."""
        whole, rest = divmod(self._num_samples, self.global_batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to read next, from its first batch unless it was resumed within."""
        if epoch != self.epoch:
            self.epoch, self.first_batch = epoch, 0

    def resume(self, epoch: int, batch: int) -> None:
        """Go on in ``epoch`` with ``batch``, counted from 0, as if those before it had been read."""
        if not 0 <= batch <= len(self):
            raise ValueError(f"epoch {epoch} has {len(self)} batches, so none is number {batch}")
        self.epoch, self.first_batch = epoch, batch

    def order(self) -> list[int]:
        """Return the samples in the order of this epoch."""
        if not self._shuffle:
            return list(range(self._num_samples))
        generator = torch.Generator().manual_seed(self._seed + self.epoch)
        return torch.randperm(self._num_samples, generator=generator).tolist()

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield this replica's batches of the epoch: as many as `len` says, less those passed over."""
        order = self.order()
        for batch in range(self.first_batch, len(self)):
            start = batch * self.global_batch_size
            together = order[start : start + self.global_batch_size]
            mine = together[self._replica.rank * self.batch_size :][: self.batch_size]
            yield [*mine, *[Filler(together[0])] * (self.batch_size - len(mine))]


class WithFillers(Dataset):
    """A data set that also answers for `Filler`: the sample that it names, with no label left."""

    def __init__(self, samples: Dataset) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int | Filler) -> dict[str, torch.Tensor]:
        """Return sample ``index``."""
        if not isinstance(index, Filler):
            return self._samples[index]
        sample = self._samples[index.index]
        return {**sample, "labels": torch.full_like(sample["labels"], NO_LOSS)}


class ReplicaLoader(DataLoader):
    """A DataLoader of a `ReplicaBatchSampler` that takes the epoch from the Trainer.

    It is not to be prepared by accelerate, which would divide the batches among ranks once more.
    """

    def __init__(self, samples: Dataset, sampler: ReplicaBatchSampler, **options: Any) -> None:
        super().__init__(WithFillers(samples), batch_sampler=sampler, **options)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to read next."""
        self.batch_sampler.set_epoch(epoch)
