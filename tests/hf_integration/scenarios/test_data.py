"""Which samples a replica trains on where the data do not divide."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hf_integration.npu_trainer import NpuTrainer
from hf_integration.replica_batches import StandIn
from tests.hf_integration.divided import Sentences, make_model
from tests.hf_integration.scenarios.conftest import UNEVEN, Trained, small

EPOCHS = {"num_train_epochs": 2}


class Remembering(NpuTrainer):
    """Remembers what it trains on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[tuple[bool, list[list[int]]]] = []

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        self.seen.append((isinstance(inputs, StandIn), inputs["input_ids"].tolist()))
        return super().training_step(model, inputs, num_items_in_batch)


def place_and_memory(trainer: Any) -> tuple[int, list[tuple[bool, list[list[int]]]]]:
    """Which replica a rank is of, and what it has seen."""
    return trainer.mesh.rank("dp"), trainer.seen


def test_a_block_has_one_batch_and_replicas_have_different_ones(on_four: Trained) -> None:
    """With sequences of about one length together, whose order is drawn."""
    flags = {**EPOCHS, "train_sampling_strategy": "group_by_length"}
    run = small(
        steps=-1, rows=UNEVEN, micro_batches=4, flags=flags, kind=Remembering, after=place_and_memory
    ).at(1, 2, 2)
    seen: dict[int, list[Any]] = {}
    for record in on_four(run):
        replica, memory = record.after
        assert seen.setdefault(replica, memory) == memory
    per_epoch = len(seen[0]) // 2
    data = sorted(row["input_ids"].tolist() for row in Sentences(UNEVEN, seed=1).rows)
    epochs = []
    for epoch in range(2):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        batches = [seen[replica][step] for step in steps for replica in (0, 1)]
        epochs.append([row for stands_in, rows in batches if not stands_in for row in rows])
        assert sorted(epochs[-1]) == data
    assert epochs[0] != epochs[1]


def mean_of(batches: list[list[list[int]]]) -> float:
    """The loss of a new model, averaged over the targets of all batches together."""
    labels = {tuple(row["input_ids"].tolist()): row for row in Sentences(UNEVEN, seed=1).rows}
    model = make_model("llama", layers=2).eval()
    total, count = 0.0, 0
    for batch in batches:
        rows = [labels[tuple(ids)] for ids in batch]
        together = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
        targets = int((together["labels"][:, 1:] != -100).sum())
        with torch.no_grad():
            total += float(model(**together, num_items_in_batch=torch.tensor(1)).loss)
        count += targets
    return total / count


def test_replicas_that_average_by_themselves_always_have_samples(on_four: Trained) -> None:
    """A step's loss is the mean of the replicas' losses, and one with no sample left repeats some."""
    flags = {**EPOCHS, "average_tokens_across_devices": False}
    run = small(
        steps=-1, rows=UNEVEN, micro_batches=4, flags=flags, kind=Remembering, after=place_and_memory
    ).at(2, 1, 2)
    records = on_four(run)
    first = dict(record.after for record in records)
    means = [mean_of([rows for _, rows in first[replica][:2]]) for replica in (0, 1)]
    assert records[0].values("loss")[0] == pytest.approx(sum(means) / 2, rel=1e-5)
    for record in records:
        assert record.values("loss") == records[0].values("loss")
        assert all(math.isfinite(loss) for loss in record.values("loss"))
        assert not any(stands_in for stands_in, _ in record.after[1])
