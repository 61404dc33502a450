"""Which samples a replica trains on, whatever the data set, its length and the loader's settings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch.utils.data import IterableDataset

from hf_integration.npu_trainer import NpuTrainer
from hf_integration.replica_batches import StandIn
from tests.hf_integration.comparing import same_log
from tests.hf_integration.divided import Run, Sentences, make_model, train
from tests.hf_integration.scenarios.conftest import Trained

pytestmark = pytest.mark.npu
UNEVEN = 13
"""Sequences, in micro-batches of 2: the last one is half, and the other replica has none beside it."""


class Stream(IterableDataset):
    """Sequences without places and without a length."""

    def __init__(self, count: int) -> None:
        self.rows = Sentences(count, seed=1).rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def table(count: int) -> datasets.Dataset:
    """A data set of `datasets` with a column that no model takes."""
    rows = [{key: value.tolist() for key, value in row.items()} for row in Sentences(count, seed=1).rows]
    return datasets.Dataset.from_list([{**row, "source": "somewhere"} for row in rows])


EPOCHS = {"num_train_epochs": 2}
RUNS = {
    "uneven": Run(
        steps=-1,
        rows=UNEVEN,
        flags={**EPOCHS, "eval_strategy": "epoch", "include_num_input_tokens_seen": "non_padding"},
    ),
    "uneven, in the order of the data, all tokens counted": Run(
        steps=-1,
        rows=UNEVEN,
        flags={**EPOCHS, "train_sampling_strategy": "sequential", "include_num_input_tokens_seen": "all"},
    ),
    "incomplete batches left out, read by a worker": Run(
        steps=-1,
        rows=UNEVEN,
        flags={
            **EPOCHS,
            "dataloader_drop_last": True,
            "dataloader_num_workers": 1,
            "dataloader_persistent_workers": True,
            "data_seed": 11,
        },
    ),
    "a stream": Run(steps=4, trainer={"train_dataset": Stream(15)}),
    "a table with a column too many": Run(steps=3, trainer={"train_dataset": table(20)}),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("uneven", (1, 2, 2)),
        ("uneven", (2, 1, 2)),
        ("uneven, in the order of the data, all tokens counted", (2, 1, 2)),
        ("incomplete batches left out, read by a worker", (1, 2, 2)),
        ("a stream", (2, 1, 2)),
        ("a stream", (1, 2, 2)),
        ("a table with a column too many", (2, 2, 1)),
    ],
)
def test_the_steps_are_those_of_one_process(
    on_four: Trained, name: str, layout: tuple[int, int, int], tmp_path: Path
) -> None:
    wanted = train(RUNS[name], tmp_path / "one")
    # Where an epoch's batches do not divide among the replicas, its first half is not half of its batches.
    same_log(on_four(RUNS[name].at(*layout)), wanted, ignored=["epoch"])


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


@pytest.mark.parametrize("layout", [(1, 2, 2), (2, 1, 2)], ids=str)
def test_a_block_has_one_batch_and_replicas_have_different_ones(on_four: Trained, layout: Any) -> None:
    """With sequences of about one length together, whose order is drawn."""
    flags = {**EPOCHS, "train_sampling_strategy": "group_by_length"}
    run = Run(steps=-1, rows=UNEVEN, flags=flags, kind=Remembering, after=place_and_memory).at(*layout)
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
    model = make_model("llama").eval()
    total, count = 0.0, 0
    for batch in batches:
        rows = [labels[tuple(ids)] for ids in batch]
        together = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
        targets = int((together["labels"][:, 1:] != -100).sum())
        with torch.no_grad():
            total += float(model(**together, num_items_in_batch=torch.tensor(1)).loss)
        count += targets
    return total / count


@pytest.mark.parametrize("layout", [(1, 2, 2), (2, 1, 2)], ids=str)
def test_replicas_that_average_by_themselves_always_have_samples(on_four: Trained, layout: Any) -> None:
    """A step's loss is the mean of the replicas' losses, and one with no sample left repeats some."""
    flags = {**EPOCHS, "average_tokens_across_devices": False}
    run = Run(steps=-1, rows=UNEVEN, flags=flags, kind=Remembering, after=place_and_memory).at(*layout)
    records = on_four(run)
    first = dict(record.after for record in records)
    means = [mean_of([rows for _, rows in first[replica][:2]]) for replica in (0, 1)]
    assert records[0].values("loss")[0] == pytest.approx(sum(means) / 2, rel=1e-5)
    for record in records:
        assert record.values("loss") == records[0].values("loss")
        assert all(math.isfinite(loss) for loss in record.values("loss"))
        assert not any(stands_in for stands_in, _ in record.after[1])
