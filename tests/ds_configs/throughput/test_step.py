"""A step's time against closed formulas of the papers, on a card where all other terms are free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.parallel import ParallelConfig
from ds_configs.throughput import TrainingJob, step_time
from tests.ds_configs.throughput.models import IDEAL, gpt, ideal_card, llama_7b, mixtral

GB = 1e9


def job(**changes: object) -> TrainingJob:
    """Return a small job on one card."""
    defaults: dict = {
        "shape": gpt(),
        "parallel": ParallelConfig(),
        "seq": 2048,
        "micro_batch": 2,
        "global_batch": 8,
    }
    return TrainingJob(**{**defaults, **changes})


def test_operations_are_narayanan_2021_equation_3() -> None:
    """96 B s l h² (1 + s/6h + V/16lh), with full recomputation and scores that are not halved."""
    batch, seq, layers, hidden, vocab = 8, 2048, 8, 1024, 51200
    time = step_time(job(recomputation="full", attention="eager"), ideal_card(), IDEAL)
    expected = 96 * batch * seq * layers * hidden**2
    expected *= 1 + seq / (6 * hidden) + vocab / (16 * layers * hidden)
    assert time.total * 1e12 == pytest.approx(expected, rel=1e-9)


def test_operations_of_a_llama_are_six_a_parameter_and_token() -> None:
    """Every weight of a matmul is multiplied once forward and twice backward; lookups cost nothing."""
    shape = llama_7b()
    norms = (2 * shape.layers + 1) * shape.hidden
    weights = shape.parameters() - shape.embedding_parameters() - norms
    short = replace(shape, max_positions=1)
    time = step_time(job(shape=short, seq=1, micro_batch=1, global_batch=1), ideal_card(), IDEAL)
    scores = 2 * 2 * shape.hidden * shape.layers * 0.5 * 3.5
    assert time.total * 1e12 == pytest.approx(6 * weights + scores, rel=1e-9)


def test_a_mixture_computes_with_its_active_parameters() -> None:
    shape = mixtral()
    norms = (2 * shape.layers + 1) * shape.hidden
    weights = shape.active_parameters() - shape.embedding_parameters() - norms
    scores = 2 * 2 * shape.hidden * shape.layers * 0.5 * 3.5
    time = step_time(job(shape=shape, seq=1, micro_batch=1, global_batch=1), ideal_card(), IDEAL)
    assert time.total * 1e12 == pytest.approx(6 * weights + scores, rel=1e-9)


@pytest.mark.parametrize(("tp", "pp", "dp"), [(2, 1, 1), (1, 2, 1), (1, 1, 2), (4, 2, 1)])
def test_ranks_divide_the_work(tp: int, pp: int, dp: int) -> None:
    one = step_time(job(shape=gpt(vocab=8)), ideal_card(), IDEAL)
    many = step_time(job(shape=gpt(vocab=8), parallel=ParallelConfig(tp, pp, dp)), ideal_card(), IDEAL)
    assert many.compute == pytest.approx(one.compute / (tp * pp * dp), rel=1e-3)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_the_bubble_is_p_minus_one_over_m(stages: int) -> None:
    """Narayanan et al. 2021 §2.2.1, with stages made equal by a vocabulary that costs nothing."""
    time = step_time(job(shape=gpt(vocab=1), parallel=ParallelConfig(pp=stages)), ideal_card(), IDEAL)
    assert time.bubble / time.compute == pytest.approx((stages - 1) / 4, rel=1e-3)


@pytest.mark.parametrize(("stage", "volumes"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_data_parallel_volume_is_the_zero_papers(stage: int, volumes: int) -> None:
    """Rajbhandari et al. 2020 §7: 2Ψ up to stage 2, 3Ψ under stage 3 (Ψ gradients of 2 bytes)."""
    ranks, bandwidth = 8, 100 * GB
    card = ideal_card(link_bandwidth=bandwidth, peer_bandwidth=bandwidth)
    work = job(parallel=ParallelConfig(dp=ranks), stage=stage, micro_batch=1)
    expected = volumes * 2 * gpt().parameters() * (ranks - 1) / ranks / bandwidth
    assert step_time(work, card, IDEAL).data_parallel == pytest.approx(expected, rel=1e-6)


def test_stages_2_and_3_communicate_in_every_micro_batch() -> None:
    """DeepSpeed reduces once a step under stage 1, in each micro-batch under stages 2 and 3."""
    card = ideal_card(link_bandwidth=100 * GB, peer_bandwidth=100 * GB)

    def seconds(stage: int, batch: int) -> float:
        work = job(parallel=ParallelConfig(dp=8), stage=stage, micro_batch=1, global_batch=batch)
        return step_time(work, card, IDEAL).data_parallel

    assert seconds(1, 32) == pytest.approx(seconds(1, 8))
    assert seconds(2, 32) == pytest.approx(
        seconds(2, 8) * 5 / 2
    )  # four reductions and one gather, for one each
    assert seconds(3, 32) == pytest.approx(seconds(3, 8) * 4)


def test_tensor_parallel_volume_is_shoeybis() -> None:
    """Four all-reduces of batch × sequence × hidden a layer and micro-batch (Shoeybi et al. 2019 §3)."""
    ranks, bandwidth, tokens = 4, 100 * GB, 2 * 2048
    card = ideal_card(link_bandwidth=bandwidth, peer_bandwidth=bandwidth)
    plain = job(parallel=ParallelConfig(tp=ranks))
    all_reduce = 2 * (ranks - 1) / ranks * tokens * 1024 * 2 / bandwidth
    expected = 4 * 8 * 4 * all_reduce  # 4 micro-batches, 8 layers
    time = step_time(plain, card, IDEAL)
    assert time.tensor_parallel == pytest.approx(expected, rel=1e-6)
    sequence = replace(plain, parallel=ParallelConfig(tp=ranks, sequence_parallel=True))
    assert step_time(sequence, card, IDEAL).tensor_parallel == pytest.approx(expected, rel=1e-6)
    assert step_time(replace(plain, fused_tp=True), card, IDEAL).tensor_parallel == pytest.approx(
        expected / 2
    )
    again = step_time(replace(plain, recomputation="full"), card, IDEAL)
    assert again.tensor_parallel == pytest.approx(expected * 1.5, rel=1e-6)


def test_a_vocabulary_that_is_not_divided_is_computed_whole_on_each_rank() -> None:
    """DeepSpeed's AutoTP leaves the output layer as it is: 6 · tokens · hidden · vocabulary more or less."""
    divided = job(parallel=ParallelConfig(tp=4))
    whole = step_time(replace(divided, vocab_parallel=False), ideal_card(), IDEAL)
    more = whole.compute - step_time(divided, ideal_card(), IDEAL).compute
    assert more * 1e12 == pytest.approx(6 * 8 * 2048 * 1024 * 51200 * 3 / 4, rel=1e-9)


def test_expert_parallel_volume_is_four_all_to_alls() -> None:
    """Tokens go to their experts and back, forward and backward (Lepikhin et al. 2021; DeepSpeed-MoE §4)."""
    bandwidth = 100 * GB
    card = ideal_card(link_bandwidth=bandwidth, peer_bandwidth=bandwidth)
    work = job(shape=mixtral(), parallel=ParallelConfig(dp=8, ep=8), micro_batch=1)
    sent = 2048 * 2 * 4096 * 2 * 7 / 8
    assert step_time(work, card, IDEAL).expert_parallel == pytest.approx(4 * 32 * sent / bandwidth, rel=1e-6)


def test_a_group_that_leaves_the_node_uses_each_cards_adapter() -> None:
    """16 ranks in 2 nodes: 7/8 of the tensor over the fast links, half of an eighth over the network."""
    card = ideal_card(link_bandwidth=100 * GB, peer_bandwidth=100 * GB, network_bandwidth=10 * GB)
    work = job(parallel=ParallelConfig(dp=16), stage=1, micro_batch=1, global_batch=16)
    size = 2 * gpt().parameters()
    expected = 2 * (size * 7 / 8 / (100 * GB) + size / 8 / 2 / (10 * GB))
    assert step_time(work, card, IDEAL).data_parallel == pytest.approx(expected, rel=1e-6)


def test_overlap_hides_a_reduction_behind_the_backward_pass() -> None:
    card = ideal_card(link_bandwidth=100 * GB, peer_bandwidth=100 * GB)
    work = job(parallel=ParallelConfig(dp=8), stage=0, micro_batch=1)
    hidden = step_time(replace(work, overlap_dp=True), card, IDEAL)
    assert hidden.data_parallel == 0.0
    slow = card.with_figures(link_bandwidth=0.01 * GB, peer_bandwidth=0.01 * GB)
    assert step_time(replace(work, overlap_dp=True), slow, IDEAL).data_parallel > 0


def test_offload_moves_gradients_down_and_weights_up() -> None:
    card = ideal_card(host_bandwidth=10 * GB, host_memory_bandwidth=30 * GB)
    work = job(stage=2, offload_optimizer="cpu")
    parameters = gpt().parameters()
    time = step_time(work, card, IDEAL)
    assert time.offload == pytest.approx(parameters * (4 * 2 + 2) / (10 * GB))  # four micro-batches
    assert time.optimizer == pytest.approx(parameters * 30 / (30 * GB))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"global_batch": 7}, "global batch of 7 is no multiple of dp 1 × micro-batch 2"),
        ({"seq": 8192}, "8192 tokens exceeds the 4096 positions"),
        ({"parallel": ParallelConfig(tp=3)}, "tp=3 does not divide the 16 attention heads"),
        ({"parallel": ParallelConfig(pp=16)}, "16 × 1 chunks.*8"),
        ({"parallel": ParallelConfig(pp=2), "stage": 2}, "pp=2 works with ZeRO stage 0 or 1"),
        ({"virtual_stages": 2}, "only the interleaved schedule"),
        ({"parallel": ParallelConfig(dp=2, ep=2)}, "no experts"),
        ({"stage": 2, "offload_param": "cpu"}, "offload_param needs ZeRO stage 3"),
        ({"offload_optimizer": "cpu"}, "offload_optimizer needs ZeRO stage 1, 2 or 3"),
        ({"stage": 4}, "ZeRO stage is 4"),
        ({"schedule": "dance"}, "'dance'; choose one of gpipe"),
        ({"micro_batch": 0}, "micro_batch is 0"),
    ],
)
def test_impossible_jobs_are_refused(changes: dict, reason: str) -> None:
    with pytest.raises(DsConfigError, match=reason):
        job(**changes)
