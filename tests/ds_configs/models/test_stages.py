"""How layers lie on pipeline stages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ds_configs.models.stages import layers_of_stages


@given(st.integers(1, 200).flatmap(lambda layers: st.tuples(st.just(layers), st.integers(1, layers))))
def test_every_layer_has_a_stage_and_the_last_stage_none_too_many(sizes: tuple[int, int]) -> None:
    layers, stages = sizes
    lie = layers_of_stages(layers, stages)
    assert [layer for stage in lie for layer in stage] == list(range(layers))
    counts = [len(stage) for stage in lie]
    assert len(counts) == stages
    assert max(counts) - min(counts) <= 1
    assert counts[-1] == min(counts)
