"""Each sample of an epoch goes to one replica, once, whatever does not divide."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_pt_utils import LengthGroupedSampler

from hf_integration.data.sampler import Replica
from hf_integration.replica_batches import ByEpoch, StandIn, ends_with_stand_in, of_replica

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 12, 13)


class Stream(IterableDataset):
    """Numbers without places."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def collate(samples: list[int]) -> dict[str, torch.Tensor]:
    """A batch as the Trainer has it."""
    return {"labels": torch.tensor(samples)}


def batches(samples: Any, replicas: int, **options: Any) -> list[list[dict[str, Any]]]:
    """The batches of every replica."""
    loader = DataLoader(samples, batch_size=2, collate_fn=collate, **options)
    return [list(of_replica(loader, Replica(rank, replicas))) for rank in range(replicas)]


def rows(found: list[list[dict[str, Any]]]) -> list[int]:
    """The samples of all replicas, in the order of the steps, without what stands for none."""
    steps = itertools.chain.from_iterable(zip(*found, strict=True))
    return [row for batch in steps if not isinstance(batch, StandIn) for row in batch["labels"].tolist()]


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_stream_is_dealt_once(length: int, replicas: int) -> None:
    assert rows(batches(Stream(length), replicas)) == list(range(length))
    kept = length // (2 * replicas) * 2 * replicas
    assert rows(batches(Stream(length), replicas, drop_last=True)) == list(range(kept))


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_samples_with_places_are_dealt_once(length: int, replicas: int) -> None:
    """All replicas have as many batches, and each knows beforehand whether its last one stands for none."""
    loader = DataLoader(range(length), batch_size=2, collate_fn=collate)
    seen: list[list[dict[str, Any]]] = []
    for rank in range(replicas):
        own = of_replica(loader, Replica(rank, replicas))
        found = list(own)
        assert len(found) == len(own)
        if ends_with_stand_in(own):
            found[-1] = StandIn(found[-1])
        seen.append(found)
    assert rows(seen) == list(range(length))


def test_the_trainer_s_loader_still_reaches_the_sampler() -> None:
    """accelerate gives it seed and epoch, also once a resumed run passes over batches."""
    loader = DataLoader(range(7), batch_size=2, collate_fn=collate, shuffle=True)
    one = prepare_data_loader(loader, use_seedable_sampler=True, data_seed=5)
    one.set_epoch(3)
    wanted = [row for batch in one for row in batch["labels"].tolist()]
    found = []
    for rank in range(2):
        own = prepare_data_loader(
            of_replica(loader, Replica(rank, 2)), num_processes=1, use_seedable_sampler=True, data_seed=5
        )
        later = skip_first_batches(own, 1)
        assert ends_with_stand_in(later) == ends_with_stand_in(own) is False
        later.set_epoch(3)
        found.append(list(later))
    assert rows(found) == wanted[4:]


def test_a_drawn_order_depends_on_the_epoch_alone() -> None:
    sampler = LengthGroupedSampler(4, lengths=list(range(20)), generator=torch.Generator())
    first, later = ByEpoch(sampler, 5), ByEpoch(sampler, 5)
    orders = []
    for epoch in range(3):
        first.set_epoch(epoch)
        orders.append(list(first))
    later.set_epoch(2)
    assert list(later) == orders[2] != orders[1]
    assert sorted(orders[2]) == list(range(20))


def test_a_stand_in_has_no_target_and_no_row() -> None:
    batch = StandIn(input_ids=torch.ones(1, 3), labels=torch.ones(1, 3, dtype=torch.long), name="x")
    assert (batch.without_labels()["labels"] == -100).all()
    assert batch.without_rows()["input_ids"].numel() == 0
    assert batch["labels"].sum() == 3
