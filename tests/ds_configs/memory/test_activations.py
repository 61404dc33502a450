"""Activations of transformers' layers against the tensors that autograd really keeps, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from ds_configs.memory import MemoryJob, estimate
from ds_configs.models.hf_config import shape_of_config
from tests.ds_configs.memory.autograd_bytes import MICRO_BATCH, SEQUENCE
from tests.ds_configs.oracle import Oracle

GATED = {"intermediate_size": 384, "num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "num_key_value_heads": 2, "intermediate_size": 256}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GATED,
    "qwen2": GATED,
    "qwen3": {**GATED, "head_dim": 32},
    "olmo2": {"intermediate_size": 384},
    "gpt_neox": {"intermediate_size": 512},
    "gpt2": {"bos_token_id": 0, "eos_token_id": 0},
    "opt": {"ffn_dim": 512, "word_embed_proj_dim": 128},
    "mixtral": {**EXPERTS, "num_local_experts": 4},
    "qwen2_moe": {
        **EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 256,
    },
    "qwen3_moe": {**EXPERTS, "num_local_experts": 4, "moe_intermediate_size": 128},
}
SIZES = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 1024}
# Fused attention is the device's own: test_flash.py.
CASES = [(family, dtype, False) for family in FAMILIES for dtype in ("bfloat16", "float32")]
CASES.append(("llama", "bfloat16", True))
NAMES = {"bfloat16": "bf16", "float32": "fp32"}


@pytest.fixture(scope="module")
def live(oracle: Oracle) -> dict[tuple[Any, ...], list[Any]]:
    """What each case keeps: bytes after the forward pass, at the peak, and its config.json."""
    cases = [
        [family, dtype, "eager", checkpointing, {**SIZES, **FAMILIES[family]}]
        for family, dtype, checkpointing in CASES
    ]
    return dict(zip(CASES, oracle.ask("live", cases=cases), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_peak_of_activations_and_loss(case: tuple[Any, ...], live: dict[tuple[Any, ...], list[Any]]) -> None:
    """After the forward pass and at the loss: within 5 % for every family and dtype.

    With recomputation the peak is inside a recomputed layer's backward pass, which is not the loss's.
    """
    forward, peak, config = live[case]
    family, dtype, checkpointing = case
    job = MemoryJob(
        shape_of_config(config, family),
        dtype=NAMES[dtype],  # type: ignore[arg-type]
        attention="eager",
        micro_batch=MICRO_BATCH,
        sequence=SEQUENCE,
        recomputation="full" if checkpointing else "none",
    )
    terms = estimate(job).stages[0].moments["loss"]
    at_loss = terms["activations"] + terms["logits and loss"]
    gradients = 2 * 4 * SIZES["vocab_size"] * MICRO_BATCH * SEQUENCE  # both fp32, of the backward pass
    assert at_loss - gradients == pytest.approx(forward, rel=0.05)
    if not checkpointing:
        assert at_loss == pytest.approx(peak, rel=0.05)
