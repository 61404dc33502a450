"""`NpuTrainer` with settings of one's own: schedules, precision, ZeRO, sources of weights, and subclasses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_integration.npu_trainer import NpuTrainer
from tests.harness.outcome import RankFailure
from tests.harness.pool import RankPool
from tests.hf_integration.divided import Record, Run, make_model, train, train_on_rank
from tests.pipeline.conftest import Ranks, kept

TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
CLOCK = ("runtime", "per_second", "tokens_per_s", "flos")


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "hccl")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Four steps of the plain Trainer in one process."""
    return train(Run(steps=4), tmp_path_factory.mktemp("plain"))


def config(stage: int = 0, **sections: Any) -> dict[str, Any]:
    """A DeepSpeed configuration that leaves batch and precision to the flags."""
    batch = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    auto = dict.fromkeys(batch, "auto")
    return {**auto, "gradient_clipping": "auto", "zero_optimization": {"stage": stage}, **sections}


SETTINGS: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "interleaved": ((1, 2, 2), {"pipeline_schedule": "interleaved", "virtual_stages": 3}),
    "zb-v, whose loss is on the first rank": ((2, 2, 1), {"pipeline_schedule": "zb-v"}),
    "recomputation": ((1, 4, 1), {"recomputation": "2"}),
    "ZeRO 1 with replicas": ((1, 2, 2), {"zero_stage": 1}),
    "ZeRO 2 with tensor parallelism": ((2, 1, 2), {"zero_stage": 2}),
    "degrees from the file": (
        (2, 2, 1),
        {"deepspeed": config(1, tensor_parallel={"autotp_size": 2}, pipeline={"stages": 2})},
    ),
    "bf16": ((2, 2, 1), {"bf16": True, "zero_stage": 1}),
    "bf16 without ZeRO": ((2, 1, 2), {"bf16": True}),
    "fp16": ((2, 2, 1), {"fp16": True, "zero_stage": 1}),
}


@pytest.mark.npu
@pytest.mark.parametrize("name", SETTINGS)
def test_losses_are_those_of_one_process(four: Ranks, plain: Record, name: str, tmp_path: Path) -> None:
    layout, flags = SETTINGS[name]
    precision = "bf16" if flags.get("bf16") else "fp16" if flags.get("fp16") else "fp32"
    run = Run(steps=4, flags=flags).at(*layout)
    if "deepspeed" in flags:
        run = replace(run, degrees_by_flag=False)
    for record in four.run(train_on_rank, run, tmp_path, "hccl", timeout=250):
        assert record.values("loss") == pytest.approx(plain.values("loss"), rel=TOLERANCE[precision])
        if precision == "fp32":
            norms = plain.values("grad_norm")
            assert record.values("grad_norm") == pytest.approx(norms, rel=TOLERANCE[precision])


class Halved(NpuTrainer):
    """A Trainer of one's own, as the Trainer's documentation shows it: half the loss, and its logits seen."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
        assert outputs.logits.shape[-1] == self.model.config.vocab_size
        loss = outputs.loss * 0.5
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        return (loss, outputs) if return_outputs else loss


@pytest.mark.npu
@pytest.mark.parametrize("layout", [(2, 2, 1), (2, 1, 2)], ids=str)
def test_a_subclass_with_its_own_loss(four: Ranks, plain: Record, layout: Any, tmp_path: Path) -> None:
    run = replace(Run(steps=1, kind=Halved).at(*layout))
    for record in four.run(train_on_rank, run, tmp_path, "hccl", timeout=250):
        assert record.values("loss") == pytest.approx([plain.values("loss")[0] / 2], rel=1e-5)
        assert record.values("grad_norm") == pytest.approx([plain.values("grad_norm")[0] / 2], rel=1e-5)


@pytest.mark.npu
@pytest.mark.parametrize("layout", [(2, 2, 1), (2, 1, 2)], ids=str)
def test_weights_come_from_a_directory(four: Ranks, plain: Record, layout: Any, tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path / "start")
    run = replace(Run(steps=2).at(*layout), weights=str(tmp_path / "start"))
    for record in four.run(train_on_rank, run, tmp_path / "out", "hccl", timeout=250):
        assert record.values("loss") == pytest.approx(plain.values("loss")[:2], rel=1e-5)


def evaluate_only(trainer: Any) -> dict[str, float]:
    """Evaluate a model that was never trained, then one step later."""
    return trainer.evaluate()


@pytest.mark.npu
def test_evaluation_before_training_and_after(four: Ranks, tmp_path: Path) -> None:
    run = Run(steps=2, layers=2, flags={"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 1})
    wanted = train(run, tmp_path / "one")
    alone = replace(run, trains=False, after=evaluate_only)
    start = four.run(train_on_rank, alone.at(2, 2, 1), tmp_path / "alone", "hccl", timeout=250)[0]
    assert start.after["eval_loss"] == pytest.approx(wanted.values("eval_loss")[0], rel=1e-5)
    record = four.run(train_on_rank, run.at(2, 2, 1), tmp_path / "four", "hccl", timeout=250)[0]
    assert record.values("eval_loss") == pytest.approx(wanted.values("eval_loss"), rel=1e-5)


@pytest.mark.npu
def test_every_rank_s_memory_and_the_speed_are_logged(four: Ranks, tmp_path: Path) -> None:
    records = four.run(train_on_rank, Run(steps=3).at(2, 2, 1), tmp_path, "hccl", timeout=250)
    entries = [entry for entry in records[3].log if "loss" in entry]
    assert all(entry[f"memory_mib_rank{rank}"] > 0 for entry in entries for rank in range(4))
    assert "simulated_npu_tokens_per_s" not in entries[0]
    assert all(entry["simulated_npu_tokens_per_s"] > 0 for entry in entries[1:])


class NoTransformer(torch.nn.Module):
    """Something that cannot be divided."""


@pytest.mark.npu
@pytest.mark.parametrize(
    ("trainer", "flags", "message"),
    [
        ({"model": NoTransformer()}, {}, "model is a NoTransformer, which cannot be divided"),
        ({"optimizers": (object(), None)}, {}, "optimizers holds parameters of the whole model"),
        ({}, {"pipeline_schedule": "interleaved", "gradient_accumulation_steps": 3}, "micro-batches"),
        ({}, {"deepspeed": config(train_batch_size=64)}, "train_batch_size is 64 in the file but 8"),
    ],
)
def test_what_cannot_be_done_is_refused_on_every_rank(
    four: Ranks, trainer: Any, flags: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RankFailure, match=message) as caught:
        run = Run(steps=1, trainer=trainer, flags=flags).at(2, 2, 1)
        four.run(train_on_rank, run, tmp_path, "hccl", timeout=250)
    assert all("TrainingInputError" in outcome.text for outcome in caught.value.outcomes)


def with_optimizers_by_position(*, model: Any, args: Any, **_: Any) -> Any:
    """Make a trainer whose eleventh argument is the Trainer's ``optimizers``."""
    from hf_integration.npu_trainer import NpuTrainer

    return NpuTrainer(model, args, *[None] * 8, (object(), None))


@pytest.mark.npu
def test_an_argument_by_position_is_refused_as_one_by_name(four: Ranks, tmp_path: Path) -> None:
    run = Run(steps=1, kind=with_optimizers_by_position).at(2, 2, 1)
    with pytest.raises(RankFailure, match="optimizers holds parameters of the whole model"):
        four.run(train_on_rank, run, tmp_path, "hccl", timeout=250)
