"""What torch_npu's scaled_dot_product_attention keeps for its backward pass, against the allocator."""

from __future__ import annotations

import pytest

from ds_configs.memory.activations import CAUSAL_MASK, FLASH_ROW
from tests.harness.fixtures import on_ranks

BLOCK = 512  # the allocator rounds each tensor up to this


@pytest.mark.parametrize("shape", [(2, 5, 5, 256, 64), (2, 4, 2, 256, 64), (1, 2, 2, 3072, 64)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@on_ranks(1)
def test_causal_attention_keeps_output_rows_and_a_mask(shape: tuple[int, ...], dtype: str) -> None:
    """Beyond its inputs: the output, two statistics a row, and a mask of 2048 × 2048 whatever the length."""
    import torch

    batch, heads, kv_heads, tokens, width = shape
    options = {"device": "npu", "dtype": getattr(torch, dtype), "requires_grad": True}
    query = torch.randn(batch, heads, tokens, width, **options)
    key, value = (torch.randn(batch, kv_heads, tokens, width, **options) for _ in range(2))
    torch.npu.synchronize()
    before = torch.npu.memory_allocated()
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=heads != kv_heads
    )
    torch.npu.synchronize()
    kept = torch.npu.memory_allocated() - before
    law = output.numel() * output.element_size() + batch * heads * tokens * FLASH_ROW + CAUSAL_MASK
    assert law <= kept <= law + 8 * BLOCK
    assert not output.transpose(1, 2).is_contiguous()  # so the output layer's input is one more copy
