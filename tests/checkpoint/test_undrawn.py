"""A skeleton is built without drawing: what would be drawn into tensors that hold nothing is skipped."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npu_plugins.checkpoint.load import without_weights as to_load
from npu_plugins.checkpoint.undrawn import Undrawn
from npu_plugins.pipeline.hf.draw import without_weights as to_split
from tests.harness.fixtures import on_ranks


class Draws(TorchDispatchMode):
    """Counts the random operations that reach torch."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def test_only_what_would_go_nowhere_is_skipped() -> None:
    empty = torch.empty(3, device="meta")
    torch.manual_seed(5)
    wanted = torch.randn(4)
    torch.manual_seed(5)
    with Draws() as draws, Undrawn():
        assert empty.uniform_() is empty
        assert empty.normal_(1.0, 2.0) is empty
        assert torch.equal(torch.empty(4).normal_(), wanted)
        assert torch.rand(2, device="meta").is_meta
    assert draws.count == 2


@on_ranks(1, backend=None, preload=("accelerate", "transformers.models.llama.modeling_llama"))
def test_skeletons_of_models_draw_nothing() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    with Draws() as draws:
        models = [
            to_split(LlamaForCausalLM, config, torch.float32)[0],
            to_load(config, LlamaForCausalLM, torch.float32),
        ]
    assert draws.count == 0
    for model in models:
        assert all(parameter.is_meta for parameter in model.parameters())
        assert not model.model.rotary_emb.inv_freq.is_meta, "buffers are computed"
