"""Evaluation and prediction: several data sets, streams, metrics by batch, and what is kept of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.hf_integration.comparing import same_log
from tests.hf_integration.divided import Record, Sentences, train
from tests.hf_integration.scenarios.conftest import Stream, Trained, small


def right(logits: Any, labels: Any) -> tuple[int, int]:
    """How many next tokens are the likeliest ones, and of how many."""
    counted = labels[:, 1:] != -100
    hits = (logits[:, :-1].argmax(-1) == labels[:, 1:]) & counted
    return int(hits.sum()), int(counted.sum())


class Growing:
    """Accuracy that is added up batch by batch."""

    def __init__(self) -> None:
        self.found = np.zeros(2)

    def __call__(self, batch: Any, compute_result: bool) -> dict[str, float]:
        self.found += right(batch.predictions, batch.label_ids)
        if not compute_result:
            return {}
        hits, count = self.found
        self.found = np.zeros(2)
        return {"accuracy": hits / count, "counted": float(count)}


def whole(prediction: Any) -> dict[str, float]:
    """What a metric gets of a whole evaluation."""
    hits, count = right(prediction.predictions, prediction.label_ids)
    return {
        "accuracy": hits / count,
        "inputs": float(np.asarray(prediction.inputs).sum()),
        "losses": float(np.mean(prediction.losses)),
    }


class Ragged(Sentences):
    """Sequences that are of one length in a batch only."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {key: value[: 12 - 2 * (index // 2)] for key, value in super().__getitem__(index).items()}


class Unlabelled(Sentences):
    """Sequences without labels."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        return {key: value for key, value in row.items() if key != "labels"}


def sizes(arrays: Any) -> Any:
    """Shape and sum of nested arrays."""
    if isinstance(arrays, (list, tuple)):
        return [sizes(each) for each in arrays]
    return None if arrays is None else [list(arrays.shape), float(np.abs(arrays).sum())]


def in_every_way(trainer: Any) -> dict[str, Any]:
    """Evaluate and predict with one setting after the other."""
    args, found = trainer.args, {}
    found["two sets"] = trainer.evaluate({"a": Sentences(5, seed=4), "b": Sentences(4, seed=5)})
    found["a set that ends in its first batch"] = trainer.evaluate(Sentences(1, seed=6))
    found["a stream"] = trainer.evaluate(Stream(7))
    prediction = trainer.predict(Sentences(5, seed=3), metric_key_prefix="apart")
    found["prediction"] = [prediction.metrics, sizes(prediction.predictions), sizes(prediction.label_ids)]
    ragged = trainer.predict(Ragged(8, seed=3))
    found["sequences of unlike length"] = [sizes(ragged.predictions), sizes(ragged.label_ids)]
    args.eval_accumulation_steps = 1
    found["moved to the host by batches"] = sizes(trainer.predict(Sentences(7, seed=3)).predictions)
    args.eval_accumulation_steps, args.eval_do_concat_batches = None, False
    found["sum of unjoined batches"] = sum(
        np.abs(each).sum().item() for each in trainer.predict(Sentences(4, seed=3)).predictions
    )
    args.eval_do_concat_batches = True
    found["no labels"] = sizes(trainer.predict(Unlabelled(3, seed=3)).predictions)
    args.prediction_loss_only = True
    found["only the loss"] = trainer.evaluate()
    args.prediction_loss_only = False
    args.include_for_metrics = ["inputs", "loss"]
    trainer.compute_metrics = whole
    found["metrics with inputs and losses"] = trainer.evaluate()
    args.include_for_metrics, args.batch_eval_metrics = [], True
    trainer.compute_metrics = Growing()
    found["metrics by batch"] = trainer.evaluate()
    return found


RUN = small(steps=1, after=in_every_way)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """What one process finds."""
    return train(RUN, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("layout", [(2, 2, 1), (1, 2, 2), (2, 1, 2)], ids=str)
def test_every_way_to_evaluate(on_four: Trained, wanted: Record, layout: tuple[int, int, int]) -> None:
    same_log(on_four(RUN.at(*layout)), wanted)
