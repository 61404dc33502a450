"""All ranks of a replica read the same micro-batches, or every rank hears which one did not."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import ProcessMesh
from npu_plugins.comm.topology import Topology
from npu_plugins.pipeline.batches import MicroBatch
from npu_plugins.pipeline.same_batches import content, differing, fingerprints
from tests.pipeline import same_batches_cases as cases
from tests.pipeline.conftest import Ranks


def place(config: ParallelConfig, rank: int) -> ProcessMesh:
    """A rank's mesh, with no groups."""
    return ProcessMesh(Topology(config), rank, {}, torch.device("cpu"), "gloo")


@settings(deadline=None, max_examples=100)
@given(
    degrees=st.tuples(*[st.integers(1, 3)] * 3),
    data=st.data(),
)
def test_replicas_whose_ranks_differ_are_found(degrees: tuple[int, int, int], data: st.DataObject) -> None:
    """Each rank reads one of three batches, inputs alone, labels alone, or nothing."""
    config = ParallelConfig(*degrees)
    meshes = [place(config, rank) for rank in range(config.world_size)]
    part = st.sampled_from([None, torch.zeros(2), torch.ones(2), torch.ones(2, 1)])
    read = [data.draw(st.one_of(st.none(), st.tuples(part, part))) for _ in meshes]
    numbers = [
        fingerprints([] if each is None else [MicroBatch(*each)], mesh)
        for each, mesh in zip(read, meshes, strict=True)
    ]
    expected = set()
    for replica in range(config.dp):
        for index in range(2):
            have = {
                str(each[index])
                for each, mesh in zip(read, meshes, strict=True)
                if mesh.rank("dp") == replica and each is not None and each[index] is not None
            }
            expected |= {replica} if len(have) > 1 else set()
    assert differing([max(each) for each in zip(*numbers, strict=True)]) == sorted(expected)


def test_content_is_every_bit_and_no_order() -> None:
    ids = torch.arange(6)
    assert content({"a": ids, "b": 1.0}) == content({"b": 1.0, "a": ids.clone()})
    different = [
        {"a": ids},
        {"b": ids},
        {"a": ids.int()},
        {"a": ids.view(2, 3)},
        {"a": ids + 1},
        {"a": ids, "b": 1.0},
        {"a": ids, "b": 1},
        [ids],
        {"a": torch.tensor([0.0])},
        {"a": torch.tensor([-0.0])},
    ]
    assert len({content(each) for each in different}) == len(different)


def test_ranks_that_read_different_data_are_refused(four: Ranks) -> None:
    four.run(cases.different_data, four.backend)
