"""Models and ideal cards that the throughput tests share."""

from __future__ import annotations

from dataclasses import replace

from ds_configs.hardware import Hardware, load_hardware
from ds_configs.models import ModelShape, MoeShape
from ds_configs.throughput import Efficiency

IDEAL = Efficiency(
    matmul=1.0, attention=1.0, hbm=1.0, link=1.0, network=1.0, fused_tp_overlap=0.5, kernel_seconds=0.0
)


def gpt(layers: int = 8, hidden: int = 1024, vocab: int = 51200, heads: int = 16) -> ModelShape:
    """The GPT of Narayanan et al. 2021: an MLP of 4 × hidden, no gate."""
    return ModelShape(
        name="gpt",
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=vocab,
        max_positions=4096,
        gated_mlp=False,
    )


def llama_7b() -> ModelShape:
    """Llama 2 7B."""
    return ModelShape(
        name="llama2-7b",
        layers=32,
        hidden=4096,
        ffn=11008,
        heads=32,
        kv_heads=32,
        head_dim=128,
        vocab=32000,
        max_positions=4096,
    )


def mixtral() -> ModelShape:
    """Mixtral 8x7B."""
    return replace(
        llama_7b(), name="mixtral", ffn=14336, kv_heads=8, moe=MoeShape(experts=8, top_k=2, expert_ffn=14336)
    )


def ideal_card(**figures: float) -> Hardware:
    """A card whose memory and links take no time unless ``figures`` say otherwise."""
    instant = {
        "peak_flops": 1e12,
        "hbm_bandwidth": 1e30,
        "link_bandwidth": 1e30,
        "peer_bandwidth": 1e30,
        "network_bandwidth": 1e30,
        "link_latency": 1e-30,
        "network_latency": 1e-30,
    }
    return load_hardware("a100-80gb").with_figures(**{**instant, **figures})
