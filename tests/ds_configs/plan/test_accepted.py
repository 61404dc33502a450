"""What the planner writes for engines that run today is taken by HF and by DeepSpeed's own parser."""

from __future__ import annotations

import pytest

from ds_configs.hardware import load_hardware
from ds_configs.models import find_model
from ds_configs.plan import PlanRequest, ds_config, plan
from tests.ds_configs.oracle import Oracle
from tests.ds_configs.resolve.runs import run_flags

CARD = load_hardware("ascend-910b2")


@pytest.mark.parametrize(
    ("model", "npus", "batch", "dtype"),
    [
        ("llama-2-7b", 8, 64, "bf16"),
        ("llama-2-13b", 8, 8, "bf16"),
        ("gpt2-xl", 4, 16, "fp16"),
        ("gpt2-xl", 2, 16, "fp32"),
        ("mixtral-8x7b", 64, 512, "bf16"),
    ],
)
def test_every_proposal_that_runs_today_is_accepted(
    model: str, npus: int, batch: int, dtype: str, oracle: Oracle
) -> None:
    shape = find_model(model)
    asked = PlanRequest(shape, npus, CARD, 1024, batch, dtype=dtype, today_only=True)  # type: ignore[arg-type]
    families = set()
    for proposal in plan(asked).proposals:
        job, own = proposal.candidate.job, proposal.candidate.engine.own
        config, _ = ds_config(asked, proposal.candidate)
        if job.parallel.pp == 1 and not own:
            flags = run_flags(
                npus,
                dtype,
                per_device_train_batch_size=job.micro_batch,
                gradient_accumulation_steps=job.micro_batches,
            )
            model_sizes = {"hidden_size": shape.hidden}
            config = oracle.ask("hf", config=config, run=flags, model=model_sizes, total=100)
        # AutoTP counts its ranks as data-parallel ones.
        replicas = job.parallel.dp if own else npus // job.parallel.pp
        assert oracle.deepspeed(config, replicas=replicas) == "", proposal.family
        families.add(proposal.family)
    assert len(families) >= 3
