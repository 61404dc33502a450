"""Batches of replicas, against the order that the Trainer has on one process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler

from ds_configs.parallel import ParallelConfig
from hf_integration.data.sampler import (
    Filler,
    Replica,
    ReplicaBatchSampler,
    ReplicaLoader,
    WithFillers,
)
from hf_integration.errors import TrainingInputError
from npu_plugins.comm.topology import Topology

SIZES = {"samples": st.integers(1, 40), "batch": st.integers(1, 4), "replicas": st.integers(1, 4)}


def on_one_process(samples: int, batch: int, epoch: int, drop_last: bool = False) -> list[list[int]]:
    """Return the batches of an epoch as accelerate makes them for a Trainer on one process, with seed 7."""
    numbers = list(range(samples))
    loader = DataLoader(numbers, batch_size=batch, sampler=RandomSampler(numbers), drop_last=drop_last)
    prepared = prepare_data_loader(
        loader, num_processes=1, process_index=0, use_seedable_sampler=True, data_seed=7, put_on_device=False
    )
    prepared.set_epoch(epoch)
    return [found.tolist() for found in prepared]


def by_replica(
    samples: int, batch: int, replicas: int, epoch: int, drop_last: bool = False
) -> list[list[list[int | Filler]]]:
    """Return each replica's batches of an epoch."""
    found = []
    for rank in range(replicas):
        sampler = ReplicaBatchSampler(samples, batch, Replica(rank, replicas), seed=7, drop_last=drop_last)
        sampler.set_epoch(epoch)
        found.append(list(sampler))
        assert len(found[-1]) == len(sampler)
    return found


def without_fillers(batch: list[int | Filler]) -> list[int]:
    """Return the samples of a batch that are there."""
    return [index for index in batch if not isinstance(index, Filler)]


@given(**SIZES, accumulation=st.integers(1, 3), epoch=st.integers(0, 3), drop_last=st.booleans())
def test_a_step_sees_the_samples_of_one_process(
    samples: int, batch: int, replicas: int, accumulation: int, epoch: int, drop_last: bool
) -> None:
    """One process has the same global batch: as large, or as many to accumulate over."""
    if drop_last and samples < batch * replicas:
        return
    found = by_replica(samples, batch, replicas, epoch, drop_last)
    together = [sum(map(without_fillers, batches), []) for batches in zip(*found, strict=True)]
    assert together == on_one_process(samples, batch * replicas, epoch, drop_last)
    steps = [sum(together[i : i + accumulation], []) for i in range(0, len(together), accumulation)]
    if not drop_last:
        smaller = on_one_process(samples, batch, epoch)
        per_step = accumulation * replicas
        assert steps == [sum(smaller[i : i + per_step], []) for i in range(0, len(smaller), per_step)]


@given(**SIZES)
def test_all_batches_are_of_one_size_and_no_sample_comes_twice(
    samples: int, batch: int, replicas: int
) -> None:
    found = [each for batches in by_replica(samples, batch, replicas, epoch=1) for each in batches]
    assert {len(each) for each in found} == {batch}
    assert sorted(sum(map(without_fillers, found), [])) == list(range(samples))
    sampler = ReplicaBatchSampler(samples, batch, Replica(0, replicas), seed=7)
    assert sampler.leaves_one_empty == any(not without_fillers(each) for each in found)


@given(**SIZES, data=st.data())
def test_resumed_epoch_goes_on_where_it_stopped(
    samples: int, batch: int, replicas: int, data: st.DataObject
) -> None:
    sampler = ReplicaBatchSampler(samples, batch, Replica(0, replicas), seed=3)
    sampler.set_epoch(2)
    whole = list(sampler)
    done = data.draw(st.integers(0, len(whole)))
    fresh = ReplicaBatchSampler(samples, batch, Replica(0, replicas), seed=3)
    fresh.resume(epoch=2, batch=done)
    fresh.set_epoch(2)  # as a Trainer says once more; it is no new epoch
    assert list(fresh) == whole[done:]
    fresh.set_epoch(3)
    sampler.set_epoch(3)
    assert list(fresh) == list(sampler)
    assert len(fresh) == len(whole)


def test_epochs_and_seeds_shuffle_otherwise_and_no_shuffle_keeps_the_order() -> None:
    def order(seed: int, epoch: int, **options: bool) -> list[int]:
        sampler = ReplicaBatchSampler(20, 20, Replica(), seed=seed, **options)
        sampler.set_epoch(epoch)
        return next(iter(sampler))

    assert len({tuple(order(seed, epoch)) for seed, epoch in ((0, 0), (0, 1), (5, 0))}) == 3
    assert order(0, 1) == order(1, 0)  # seed + epoch, as in accelerate
    assert order(0, 3, shuffle=False) == list(range(20))


@pytest.mark.parametrize("degrees", [{"tp": 2, "pp": 2}, {"tp": 2, "pp": 1}, {"tp": 1, "pp": 4}])
def test_ranks_of_a_block_read_one_batch_and_replicas_different_ones(degrees: dict[str, int]) -> None:
    topology = Topology(ParallelConfig.of_world(8, **degrees))
    block = degrees["tp"] * degrees["pp"]
    read: dict[tuple[int, ...], list[int]] = {}
    for rank in range(8):
        mesh = SimpleNamespace(rank=lambda axis, rank=rank: topology.place(axis, rank), size=topology.size)
        sampler = ReplicaBatchSampler(64, 3, Replica.of(mesh), seed=0)
        read.setdefault(tuple(next(iter(sampler))), []).append(rank)
    assert sorted(map(len, read.values())) == [block] * (8 // block)
    assert len(set().union(*read)) == 3 * (8 // block)


def test_filler_has_the_shape_of_a_sample_and_no_label() -> None:
    samples = [{"input_ids": torch.tensor([5, 6]), "labels": torch.tensor([-100, 6])}]
    filled = WithFillers(samples)
    assert filled[0] is samples[0]
    assert filled[Filler(0)]["input_ids"].tolist() == [5, 6]
    assert filled[Filler(0)]["labels"].tolist() == [-100, -100]
    assert samples[0]["labels"].tolist() == [-100, 6]
    with pytest.raises(TypeError):
        samples[Filler(0)]  # a data set that knows no fillers does not take one for a sample


def test_loader_takes_the_epoch() -> None:
    samples = [{"input_ids": torch.tensor([i]), "labels": torch.tensor([i])} for i in range(12)]
    loader = ReplicaLoader(samples, ReplicaBatchSampler(12, 4, Replica(), seed=7))
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        assert [batch["labels"].flatten().tolist() for batch in loader] == on_one_process(12, 4, epoch)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(TrainingInputError, match="5 sequences are fewer than one batch of 3 × 2 replicas"):
        ReplicaBatchSampler(5, 3, Replica(0, 2), seed=0, drop_last=True)
    with pytest.raises(ValueError, match="replica 2 of 2 does not exist"):
        ReplicaBatchSampler(5, 3, Replica(2, 2), seed=0)
    with pytest.raises(ValueError, match="epoch 0 has 2 batches, so none is number 3"):
        ReplicaBatchSampler(5, 3, Replica(), seed=0).resume(0, 3)
