"""What must hold of every job: better hardware is never slower, and a saved operation never costs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ds_configs.hardware import Hardware, load_hardware
from ds_configs.parallel import ParallelConfig
from ds_configs.throughput import StepTime, TrainingJob, step_time
from tests.ds_configs.throughput.models import llama_7b, mixtral

RATES = (
    "peak_flops",
    "hbm_bandwidth",
    "link_bandwidth",
    "peer_bandwidth",
    "network_bandwidth",
    "host_bandwidth",
    "host_memory_bandwidth",
    "nvme_bandwidth",
)
CARD = load_hardware("ascend-910b2")


@st.composite
def jobs(draw: st.DrawFn) -> TrainingJob:
    """Any job of two models that TrainingJob accepts, on up to 2048 cards."""
    shape = draw(st.sampled_from([llama_7b(), mixtral()]))
    powers = st.sampled_from([1, 2, 4, 8])
    tp, pp, dp = draw(powers), draw(powers), draw(st.sampled_from([1, 2, 8, 32]))
    ep = draw(st.sampled_from([1, 2, 8])) if shape.moe else 1
    parallel = ParallelConfig(tp, pp, dp, ep if dp % ep == 0 else 1, draw(st.booleans()) and tp > 1)
    stage = draw(st.integers(0, 1 if pp > 1 else 3))
    micro_batch = draw(st.sampled_from([1, 2, 4]))
    return TrainingJob(
        shape,
        parallel,
        seq=draw(st.sampled_from([512, 4096])),
        micro_batch=micro_batch,
        global_batch=dp * micro_batch * draw(st.integers(1, 16)),
        stage=stage,
        recomputation=draw(st.sampled_from(["none", "selective", "full"])),
        attention=draw(st.sampled_from(["flash", "eager"])),
        schedule=draw(st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-v"])),
        overlap_dp=draw(st.booleans()),
        offload_optimizer=draw(st.sampled_from(["none", "cpu", "nvme"])) if stage else "none",
        offload_param=draw(st.sampled_from(["none", "cpu", "nvme"])) if stage == 3 else "none",
    )


def terms(time: StepTime) -> dict[str, float]:
    """Return the terms by name."""
    return vars(time)


@given(jobs())
@settings(deadline=None)
def test_no_term_is_negative(job: TrainingJob) -> None:
    assert all(seconds >= 0 for seconds in terms(step_time(job, CARD)).values())


@given(jobs(), st.sampled_from(RATES), st.floats(1.0, 10.0))
@settings(deadline=None)
def test_a_faster_part_is_never_slower(job: TrainingJob, part: str, factor: float) -> None:
    faster = _with(CARD, part, factor)
    assert step_time(job, faster).total <= step_time(job, CARD).total * (1 + 1e-12)


@given(jobs())
@settings(deadline=None)
def test_recomputing_more_takes_longer(job: TrainingJob) -> None:
    """Without overlap: a longer backward pass may hide a reduction."""
    job = replace(job, overlap_dp=False)
    none, selective, full = (
        step_time(replace(job, recomputation=kind), CARD).total for kind in ("none", "selective", "full")
    )
    assert none < selective < full


@given(jobs())
@settings(deadline=None)
def test_overlap_fusing_and_staying_on_the_card_never_cost(job: TrainingJob) -> None:
    time = step_time(job, CARD).total
    for change in (
        {"overlap_dp": True},
        {"fused_tp": True},
        {"offload_param": "none"},
        {"offload_optimizer": "none", "offload_param": "none"},
    ):
        assert step_time(replace(job, **change), CARD).total <= time * (1 + 1e-12)


@given(jobs())
@settings(deadline=None)
def test_a_smaller_bubble_comes_with_a_better_schedule(job: TrainingJob) -> None:
    gpipe, one, zero = (
        step_time(replace(job, schedule=name), CARD).bubble for name in ("gpipe", "1f1b", "zb-h1")
    )
    assert gpipe == one >= zero


@given(jobs())
@settings(deadline=None)
def test_twice_the_batch_takes_at_most_twice_as_long(job: TrainingJob) -> None:
    twice = step_time(replace(job, global_batch=2 * job.global_batch), CARD)
    once = step_time(job, CARD)
    assert once.total < twice.total <= 2 * once.total * (1 + 1e-12)


def _with(card: Hardware, part: str, factor: float) -> Hardware:
    figures = {part: getattr(card, part) * factor}
    if part == "peer_bandwidth":  # one peer is never faster than all together
        figures["link_bandwidth"] = max(card.link_bandwidth, figures["peer_bandwidth"])
    return card.with_figures(**figures)
