"""What the Trainer gives, with `NpuTrainer` at tp 2 × pp 2 and at tp 2 alone, against the plain Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.harness.pool import RankPool
from tests.hf_integration.comparing import same_log
from tests.hf_integration.divided import Record, Run, Sentences, train, train_on_rank
from tests.pipeline.conftest import Ranks, kept


def accuracy(prediction: Any) -> dict[str, float]:
    """Share of the right next tokens, and the shapes that came."""
    chosen = prediction.predictions[:, :-1]
    labels = prediction.label_ids[:, 1:]
    counted = labels != -100
    return {
        "accuracy": float((chosen == labels)[counted].mean()),
        "rows": float(len(labels)),
        "sum": float(chosen.sum()),
    }


def choose(logits: Any, labels: torch.Tensor) -> torch.Tensor:
    """The likeliest token, before anything is gathered."""
    return logits.argmax(-1)


def squared(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A loss of one's own: the squared distance of each token's logits from one-hot vectors."""
    wanted = torch.nn.functional.one_hot(labels[:, 1:].clamp(min=0), outputs.logits.shape[-1])
    distance = (outputs.logits[:, :-1].float() - wanted).pow(2).mean(-1)
    total = (distance * (labels[:, 1:] != -100)).sum()
    return total / (1 if num_items_in_batch is None else num_items_in_batch)


def evaluated(trainer: Any) -> dict[str, Any]:
    """Evaluate and predict."""
    metrics = trainer.evaluate()
    prediction = trainer.predict(Sentences(5, seed=3))
    return {**metrics, "logits": float(np.abs(prediction.predictions).sum()), **prediction.metrics}


FEATURES: dict[str, Run] = {
    "label smoothing": Run(layers=2, steps=3, flags={"label_smoothing_factor": 0.1}, after=evaluated),
    "a loss function of one's own": Run(
        layers=2, steps=3, trainer={"compute_loss_func": squared}, after=evaluated
    ),
    "metrics of logits": Run(
        layers=2,
        steps=4,
        trainer={"compute_metrics": accuracy, "preprocess_logits_for_metrics": choose},
        flags={"eval_strategy": "steps", "eval_steps": 2},
    ),
    "epochs": Run(layers=2, steps=-1, rows=22, flags={"num_train_epochs": 2, "logging_strategy": "epoch"}),
    "no clipping": Run(layers=2, steps=3, flags={"max_grad_norm": 0.0}),
    "tight clipping": Run(layers=2, steps=3, flags={"max_grad_norm": 0.1}),
    "means of micro-batches": Run(layers=2, steps=3, flags={"average_tokens_across_devices": False}),
    "recomputation": Run(layers=2, steps=3, flags={"gradient_checkpointing": True}),
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """The plain Trainer in this process, by feature."""
    return {name: train(run, tmp_path_factory.mktemp("one")) for name, run in FEATURES.items()}


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "hccl")


LAYOUTS = {
    "label smoothing": [(1, 2, 2), (2, 1, 2)],
    "a loss function of one's own": [(2, 2, 1), (2, 1, 2)],
    "metrics of logits": [(2, 2, 1), (1, 2, 2)],
    "epochs": [(2, 2, 1)],
    "no clipping": [(1, 2, 2), (2, 1, 2)],
    "tight clipping": [(2, 2, 1)],
    "means of micro-batches": [(2, 2, 1), (4, 1, 1)],
    "recomputation": [(2, 2, 1), (2, 1, 2)],
}
"""(tp, pp, dp) on four ranks, such that each kind of engine meets each kind of thing."""


@pytest.mark.npu
@pytest.mark.parametrize(("name", "layout"), [(name, each) for name in FEATURES for each in LAYOUTS[name]])
def test_a_feature_of_the_trainer(
    four: Ranks, one: dict[str, Record], name: str, layout: tuple[int, int, int], tmp_path: Path
) -> None:
    run = FEATURES[name].at(*layout)
    same_log(four.run(train_on_rank, run, tmp_path, "hccl", timeout=250), one[name])
