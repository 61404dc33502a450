"""The documents' decision table: each row must come out of times and memory, not of a rule."""

from __future__ import annotations

from ds_configs.hardware import Hardware, load_hardware
from ds_configs.models import ModelShape, find_model
from ds_configs.plan import Plan, PlanRequest, plan

CARD = load_hardware("ascend-910b2")
# Cards that reach each other over PCIe and the nodes over 25 Gbit/s Ethernet.
SLOW = CARD.with_figures(link_bandwidth=5e9, peer_bandwidth=5e9, network_bandwidth=3e9)


def proposal(shape: ModelShape, npus: int, batch: int, card: Hardware = CARD, **more: object) -> Plan:
    """Plan sequences of 4096 tokens, or what the model takes."""
    return plan(PlanRequest(shape, npus, card, min(4096, shape.max_positions), batch, **more))  # type: ignore[arg-type]


def test_fits_on_one_card_and_shall_be_faster_gives_data_parallelism() -> None:
    found = proposal(ModelShape.from_parameters("760M"), npus=8, batch=512)
    assert found.winner is not None
    assert found.winner.family == "data parallel"
    assert found.winner.candidate.job.parallel.dp == 8
    assert found.winner.candidate.job.stage == 0


def test_does_not_fit_on_one_card_and_links_are_fast_gives_tensor_parallelism_in_the_node() -> None:
    shape = find_model("llama-2-13b")
    found = proposal(shape, npus=8, batch=8)
    assert "data parallel" in {miss.candidate.family for miss in found.misses}
    assert found.winner is not None
    assert found.winner.family == "tensor parallel"
    assert found.winner.candidate.job.parallel.tp <= CARD.node_size
    slow = proposal(shape, npus=8, batch=8, card=SLOW)
    assert slow.winner is not None
    assert slow.winner.family != "tensor parallel"


def test_many_layers_and_slow_links_give_a_pipeline() -> None:
    found = proposal(find_model("llama-2-13b"), npus=8, batch=256, card=SLOW)
    assert found.winner is not None
    assert found.winner.family == "pipeline parallel"
    assert found.winner.candidate.job.micro_batches >= 8 * found.winner.candidate.job.parallel.pp


def test_does_not_fit_and_no_link_is_fast_gives_zero_with_offload() -> None:
    found = proposal(find_model("llama-2-13b"), npus=4, batch=32, card=SLOW)
    assert found.winner is not None
    assert found.winner.family in ("ZeRO-1 + optimizer offload", "ZeRO-2 + optimizer offload")
    assert found.winner.candidate.job.offload_optimizer == "cpu"


def test_a_hundred_billion_parameters_give_three_dimensions_and_zero_1() -> None:
    found = proposal(find_model("bloom-176b"), npus=1024, batch=1536)
    assert found.winner is not None
    assert found.winner.family == "tensor x pipeline parallel"
    job = found.winner.candidate.job
    assert min(job.parallel.tp, job.parallel.pp, job.parallel.dp) > 1
    assert job.stage == 1


def test_what_wins_depends_on_the_links_alone() -> None:
    """The same model, cards and batch: tensor parallelism with HCCS, a pipeline without."""
    shape = find_model("llama-2-13b")
    fast, slow = (proposal(shape, 8, 16, card, today_only=False) for card in (CARD, SLOW))
    assert fast.winner is not None and slow.winner is not None
    assert fast.winner.time.total < slow.winner.time.total
    assert slow.winner.candidate.job.parallel.tp == 1
