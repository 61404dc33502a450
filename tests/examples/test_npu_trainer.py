"""The example of a script of one's own, as it stands, at tp 2 × pp 2 and as two replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, TrainerCallback

from tests.harness.pool import RankPool
from tests.pipeline.conftest import kept


def run_example(argv: list[str]) -> list[float]:
    """Run it on this rank and return the losses it logged."""
    from unittest import mock

    from examples import npu_trainer

    losses: list[float] = []

    class Listener(TrainerCallback):
        def on_log(
            self, args: object, state: object, control: object, logs: object = None, **_: object
        ) -> None:
            if isinstance(logs, dict) and "loss" in logs:
                losses.append(logs["loss"])

    class Heard(npu_trainer.NpuTrainer):
        def __init__(self, **keywords: object) -> None:
            super().__init__(**keywords, callbacks=[Listener()])

    with mock.patch.object(npu_trainer, "NpuTrainer", Heard):
        npu_trainer.main(argv)
    return losses


@pytest.mark.npu
def test_it_learns_at_any_degrees_and_saves_a_plain_directory(rank_pool: RankPool, tmp_path: Path) -> None:
    usual = ["--max_steps", "8", "--learning_rate", "1e-2", "--logging_steps", "1", "--report_to", "none"]
    usual += ["--per_device_train_batch_size", "4", "--save_strategy", "no", "--disable_tqdm", "true"]
    rank_pool.preload("hf_integration.npu_trainer")
    degrees = {
        "divided": ["--tensor_model_parallel_size", "2", "--pipeline_model_parallel_size", "2"],
        "replicas": ["--pipeline_model_parallel_size", "2"],
    }
    found = {}
    for four in kept(rank_pool, 4, "hccl"):
        for name, flags in degrees.items():
            accumulation = ["--gradient_accumulation_steps", "4" if name == "divided" else "2"]
            argv = [*usual, *flags, *accumulation, "--output_dir", str(tmp_path / name)]
            found[name] = four.run(run_example, argv, timeout=200)[0]
    assert found["divided"][-1] < found["divided"][0] - 0.5
    assert found["replicas"] == pytest.approx(found["divided"], rel=1e-4)
    saved = [AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in degrees]
    assert [model.config.num_hidden_layers for model in saved] == [4, 4]
