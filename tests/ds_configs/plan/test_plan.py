"""The planner: what it proposes fits and divides, losers have reasons, and refusals say what to change."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from ds_configs.errors import DsConfigError
from ds_configs.hardware import load_hardware
from ds_configs.memory import estimate
from ds_configs.models import find_model
from ds_configs.plan import Plan, PlanRequest, ds_config, launch_command, nearest_miss, plan, to_data, to_text
from ds_configs.plan.candidates import FAMILIES, candidates, divisors
from ds_configs.plan.config import memory_job, reserve
from ds_configs.plan.engines import AUTOTP, OWN_PIPELINE, OWN_TP, OWN_TP_PP
from ds_configs.throughput import step_time
from npu_plugins.pipeline.config import PipelineConfig

CARD = load_hardware("ascend-910b2")
GIB = 2**30


def request(name: str = "llama-2-7b", npus: int = 8, batch: int = 64, **more: object) -> PlanRequest:
    """Return a request for sequences of 2048 tokens on 910B2."""
    values: dict = {"hardware": CARD, "seq": 2048, **more}
    shape = find_model(name)
    values["seq"] = min(values["seq"], shape.max_positions)
    return PlanRequest(shape, npus, global_batch=batch, **values)


requests = st.builds(
    request,
    name=st.sampled_from(["gpt2-xl", "llama-2-7b", "llama-2-13b", "llama-3-70b", "mixtral-8x7b"]),
    npus=st.sampled_from([1, 2, 3, 4, 6, 8, 16, 24, 64, 256]),
    batch=st.sampled_from([1, 7, 64, 96, 512, 1536]),
    hardware=st.sampled_from([CARD, load_hardware("ascend-910b4"), load_hardware("a100-80gb")]),
    dtype=st.sampled_from(["bf16", "fp32"]),
    today_only=st.booleans(),
)


def planned(asked: PlanRequest) -> Plan:
    """Return the plan; skip what nothing divides, which has a test of its own."""
    try:
        return plan(asked)
    except DsConfigError:
        reject()


@given(requests)
@settings(deadline=None, max_examples=40)
def test_every_proposal_fits_divides_and_is_explained(asked: PlanRequest) -> None:
    found = planned(asked)
    for each in found.proposals:
        job = each.candidate.job
        config, _ = ds_config(asked, each.candidate)
        assert config["zero_optimization"]["stage"] == job.stage
        assert job.parallel.world_size == asked.npus
        assert job.parallel.dp * job.micro_batch * job.micro_batches == asked.global_batch
        assert each.memory.total <= asked.hardware.hbm_bytes * (1 - asked.margin)
        assert each.memory == estimate(memory_job(asked, each.candidate))
        assert each.time == step_time(job, asked.hardware)
        assert each.candidate.engine.today or not asked.today_only
    text = to_text(found)
    named = {each.family for each in found.proposals} | {miss.candidate.family for miss in found.misses}
    named |= set(found.impossible)
    assert named >= set(FAMILIES) - {"expert parallel"}
    assert all(family in text for family in named)
    json.dumps(to_data(found))


@given(requests)
@settings(deadline=None, max_examples=15)
def test_the_proposal_is_the_fastest_of_all_that_fit_but_for_the_models_error(asked: PlanRequest) -> None:
    """Against brute force: every candidate's memory is asked for."""
    asked = replace(asked, npus=min(asked.npus, 16), global_batch=min(asked.global_batch, 64))
    found = planned(asked)
    host = asked.hardware.host_bytes * (1 - asked.margin)
    fitting = [
        step_time(each.job, asked.hardware).total
        for each in candidates(asked)
        for memory in [estimate(memory_job(asked, each))]
        if memory.total + reserve(asked, each) <= asked.capacity and memory.host <= host
    ]
    assert (found.winner is None) == (not fitting)
    if found.winner:
        assert min(fitting) == pytest.approx(min(each.seconds for each in found.proposals))
        assert found.winner.seconds <= min(fitting) * 1.03


@given(st.integers(1, 20000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [each for each in range(1, number + 1) if number % each == 0]


def test_a_loser_is_told_why_it_lost() -> None:
    text = to_text(plan(request("llama-2-13b", batch=8, seq=4096)))
    assert "ZeRO-1 " in text and "does not fit" in text and "too much on the NPU because of" in text
    assert "slower by" in text and "data-parallel communication +" in text


def test_a_family_without_candidates_is_told_why() -> None:
    text = to_text(plan(request(batch=4)))
    assert "a global batch of 4 cannot be divided over 8 replicas; use a multiple of 8" in text
    assert "one NPU has nothing to divide" in to_text(plan(request("gpt2-xl", npus=1)))


def test_engines_still_to_come_are_marked_and_can_be_left_out() -> None:
    asked = request("mixtral-8x7b", npus=16, batch=64)
    found = plan(asked)
    text = to_text(found)
    assert "(to come)" in text
    assert ("The best that runs today" in text) == (found.winner != found.runs_today)
    today = plan(replace(asked, today_only=True))
    assert "to come" not in to_text(today)
    assert today.winner == today.runs_today


def test_both_engines_of_a_family_are_told_and_ours_is_named() -> None:
    found = plan(request("llama-2-13b", batch=8, seq=4096))
    assert "to come" not in (text := to_text(found))
    assert found.winner is not None
    assert found.winner.candidate.engine == OWN_TP
    assert "  tensor parallel  " in text  # DeepSpeed's
    assert "  pipeline parallel (npu_plugins)  " in text


def test_a_pipeline_of_ours_is_written_as_it_was_planned() -> None:
    asked = request("llama-2-13b", batch=64)
    schedules = set()
    for each in candidates(asked):
        job = each.job
        if each.engine in (OWN_PIPELINE, OWN_TP_PP) and job.micro_batch == 1 and job.stage == 0:
            config, notes = ds_config(asked, each)
            section = config["pipeline"]
            assert PipelineConfig.from_ds_config(config).stages == job.parallel.pp
            assert (section["schedule"], section["recomputation"]) == (job.schedule, job.recomputation)
            assert section.get("virtual_stages", 1) == job.virtual_stages
            assert any("npu_plugins reads the pipeline block" in note for note in notes)
            assert any("sequence parallelism" in note for note in notes) == (job.parallel.tp > 1)
            schedules.add(job.schedule)
    assert schedules == {"1f1b", "zb-h1", "zb-v", "interleaved"}


def test_the_proposals_configuration_carries_its_choices() -> None:
    asked = request("llama-2-13b", npus=2, batch=32)
    found = plan(asked)
    assert found.winner is not None
    job = found.winner.candidate.job
    config, _ = ds_config(asked, found.winner.candidate)
    assert config["zero_optimization"]["stage"] == job.stage
    assert config["train_micro_batch_size_per_gpu"] == job.micro_batch
    assert config["gradient_accumulation_steps"] == job.micro_batches
    assert config["zero_optimization"]["offload_optimizer"]["device"] == job.offload_optimizer
    assert config["bf16"]["enabled"] is True


def test_a_tensor_parallel_proposal_names_its_degree() -> None:
    asked = request("llama-2-13b", batch=4, seq=4096, today_only=True)
    candidate = next(each.candidate for each in plan(asked).proposals if each.candidate.engine == AUTOTP)
    assert candidate.family == "tensor parallel"
    config, notes = ds_config(asked, candidate)
    assert config["tensor_parallel"]["autotp_size"] == candidate.job.parallel.tp
    assert any("same batch" in note for note in notes)


def test_launch_commands() -> None:
    one = request(npus=8)
    candidate = next(iter(candidates(one)))
    command = launch_command(one, candidate, "train.py", "ds_config.json")
    assert command.startswith("deepspeed --num_gpus 8 train.py --deepspeed ds_config.json")
    many = request(npus=64)
    command = launch_command(many, next(iter(candidates(many))), "train.py", "ds_config.json")
    assert command.startswith("deepspeed --hostfile hostfile --num_nodes 8 --num_gpus 8 train.py")


def test_nothing_fits_names_the_nearest_and_the_mend() -> None:
    small = CARD.with_figures(hbm_bytes=4 * GIB, host_bytes=8 * GIB)
    found = plan(request("llama-2-70b", npus=8, hardware=small))
    assert found.winner is None
    sentence = nearest_miss(found)
    assert sentence.startswith("nearest: ")
    assert "too much because of" in sentence
    assert any(mend in sentence for mend in ("NPUs", "tokens", "GiB", "host memory"))


def test_a_batch_that_nothing_divides_is_refused() -> None:
    """Two layers make no seven stages, and a batch of five no seven replicas."""
    with pytest.raises(DsConfigError, match="batch of 5; use a batch that is a multiple of 7"):
        plan(request("tiny-llama", npus=7, batch=5, seq=128))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"npus": 0}, "npus is 0"),
        ({"npus": 12}, "12 NPUs do not fill nodes of 8; give up to 8, or a multiple such as 8"),
        ({"npus": 10**9}, "npus is 1000000000; give at most"),
        ({"batch": -1}, "global_batch is -1"),
        ({"margin": 1.0}, "margin is 1.0"),
    ],
)
def test_impossible_requests_are_refused(values: dict, reason: str) -> None:
    with pytest.raises(DsConfigError, match=reason):
        request(**values)


def test_a_sequence_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(DsConfigError, match="8192 tokens exceeds the 4096 positions of llama-2-7b"):
        PlanRequest(find_model("llama-2-7b"), 8, CARD, 8192, 64)
