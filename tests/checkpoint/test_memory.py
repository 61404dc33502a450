"""How much host memory a rank needs to load its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_plugins.checkpoint import load_sharded
from tests.checkpoint.folders import shared_folder
from tests.harness.fixtures import on_ranks
from tests.tensor_parallel.test_sharding import make_mesh

# Square matrices divided both ways: most of it, as in a real model, and small enough for a test.
SIZES: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}


def resident_peak() -> int:
    """The largest resident size since the last reset, in bytes, mapped files included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("this system counts no VmHWM")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@on_ranks(2, backend="gloo", timeout=120)
def test_a_rank_holds_no_more_than_its_share_and_a_fifth() -> None:
    import torch.distributed as dist
    from transformers import LlamaConfig, LlamaForCausalLM

    mesh = make_mesh(2)
    folder = shared_folder(mesh)
    small = LlamaConfig(**{**SIZES, "num_hidden_layers": 1, "hidden_size": 64})
    if mesh.global_rank == 0:
        LlamaForCausalLM(small).save_pretrained(folder / "small")
        LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder / "large")
    dist.barrier()
    load_sharded(folder / "small", mesh)  # imports and caches are not the checkpoint's
    reset_peak()
    before = resident_peak()
    model = load_sharded(folder / "large", mesh)
    share = sum(p.nbytes for p in model.parameters())
    whole = sum(f.stat().st_size for f in (folder / "large").glob("*.safetensors"))
    assert 0.49 < share / whole < 0.52
    peak = resident_peak() - before
    assert peak <= 1.2 * share, f"{peak / share:.3f} of the share"
    dist.barrier()
