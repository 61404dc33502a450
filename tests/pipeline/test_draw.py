"""Drawing for a parameter that is not kept moves torch's generator as if it were."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.hf import draw

DRAWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.xavier_normal_,
    nn.init.kaiming_uniform_,
]


@given(
    shapes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=4),
    fill=st.sampled_from(DRAWS),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    piece=st.sampled_from([16, 32, 1 << 16]),
)
def test_the_generator_goes_on_as_after_the_whole(
    shapes: list[tuple[int, int]],
    fill: Callable[[torch.Tensor], torch.Tensor],
    dtype: torch.dtype,
    piece: int,
) -> None:
    torch.manual_seed(7)
    for shape in shapes:
        fill(torch.empty(shape, dtype=dtype))
    wanted = torch.get_rng_state()
    torch.manual_seed(7)
    with mock.patch.object(draw, "PIECE", piece), draw.DrawingElsewhere():
        for shape in shapes:
            fill(torch.empty(shape, dtype=dtype, device="meta"))
    assert torch.equal(torch.get_rng_state(), wanted)


def test_other_ways_to_draw_are_refused() -> None:
    with draw.DrawingElsewhere(), pytest.raises(PipelineError, match="bernoulli_.*build the model"):
        torch.empty(4, device="meta").bernoulli_()
