"""Rank ↔ coordinate, against DeepSpeed's own topology and expert groups."""

from __future__ import annotations

import pytest
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from deepspeed.utils.groups import _get_expert_parallel_ranks
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import CommError, Coordinate, Topology
from npu_plugins.comm.topology import ALL_AXES

DEEPSPEED_AXES = {"tp": "model", "dp": "data", "pp": "pipe"}


@st.composite
def configs(draw: st.DrawFn) -> ParallelConfig:
    """Degrees of up to 4 × 4 × 6."""
    dp = draw(st.integers(1, 6))
    ep = draw(st.sampled_from([d for d in range(1, dp + 1) if dp % d == 0]))
    return ParallelConfig(tp=draw(st.integers(1, 4)), pp=draw(st.integers(1, 4)), dp=dp, ep=ep)


@given(configs())
def test_ranks_stand_where_deepspeed_puts_them(config: ParallelConfig) -> None:
    theirs = PipeModelDataParallelTopology(num_pp=config.pp, num_mp=config.tp, num_dp=config.dp)
    ours = Topology(config)
    for rank in range(config.world_size):
        place = theirs.get_coord(rank)
        assert ours.coordinate(rank) == Coordinate(tp=place.model, dp=place.data, pp=place.pipe)
    for axis, name in DEEPSPEED_AXES.items():
        if ours.size(axis) > 1:  # DeepSpeed gives no lists for an axis of one rank
            assert ours.groups(axis) == sorted(map(tuple, theirs.get_axis_comm_lists(name)))


@given(configs())
def test_expert_groups_are_deepspeeds(config: ParallelConfig) -> None:
    experts, expert_data = _get_expert_parallel_ranks(config.world_size, config.tp, config.ep, config.pp)
    topology = Topology(config)
    assert topology.groups("ep") == sorted(map(tuple, experts))
    assert topology.groups("edp") == sorted(map(tuple, expert_data))


@given(configs())
def test_rank_and_coordinate_are_each_others_inverse(config: ParallelConfig) -> None:
    topology = Topology(config)
    for rank in range(config.world_size):
        assert topology.rank_at(**topology.coordinate(rank)._asdict()) == rank


@given(configs())
def test_groups_of_an_axis_hold_every_rank_once_in_order_of_places(config: ParallelConfig) -> None:
    topology = Topology(config)
    for axis in ALL_AXES:
        groups = topology.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(config.world_size))
        for group in groups:
            assert len(group) == topology.size(axis)
            assert [topology.place(axis, rank) for rank in group] == list(range(len(group)))
            assert all(topology.ranks(axis, rank) == group for rank in group)


def test_the_model_group_is_one_copy_of_the_model() -> None:
    topology = Topology(ParallelConfig(tp=2, dp=2, pp=2))
    assert topology.groups("model") == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_groups_of_a_large_world_take_no_time_worth_naming() -> None:
    topology = Topology(ParallelConfig(tp=8, dp=1024, pp=8))
    assert len(topology.groups("dp")) == 64 and len(topology.groups("tp")) == 8192


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda t: t.coordinate(8), "Rank 8 is not on a mesh of tp 2 × dp 2 × pp 2; its ranks are 0 to 7"),
        (lambda t: t.rank_at(dp=2), "dp=2 is outside the mesh: its dp axis has places 0 to 1"),
        (lambda t: t.rank_at(tp=-1), "tp=-1 is outside"),
        (lambda t: t.size("cp"), "no axis 'cp'; its axes are tp, dp, pp, ep, edp, model"),
        (lambda t: t.ranks("cp", 0), "no axis 'cp'"),
        (lambda t: t.place("tp", 9), "Rank 9"),
    ],
)
def test_what_is_not_on_the_mesh_is_refused(ask, sentence: str) -> None:
    with pytest.raises(CommError, match=sentence):
        ask(Topology(ParallelConfig(tp=2, dp=2, pp=2)))
