"""What `--dry_run` foretells, against what a run then holds: the layers of each rank, and its memory."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.pool import RankPool
from tests.hf_integration.divided import LENGTH, Run, train_on_rank
from tests.pipeline.conftest import Ranks, kept

TOLERANCE = 0.15
"""Of memory: of so small a model, whose temporary tensors weigh something. The others are held to 3 % in
benchmarks/memory_accuracy.py."""
BUCKETS = dict.fromkeys(("reduce_bucket_size", "allgather_bucket_size"), 500_000)
CONFIG = {
    **dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
    ),
    "zero_optimization": BUCKETS,
    "bf16": {"enabled": "auto"},
}
LAYOUTS: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "tp 2 × pp 2": ((2, 2, 1), {}),
    "pp 2 × dp 2, ZeRO 1": ((1, 2, 2), {"zero_stage": 1, "deepspeed": CONFIG}),
    "tp 2 × dp 2, ZeRO 2, bf16": ((2, 1, 2), {"zero_stage": 2, "bf16": True, "deepspeed": CONFIG}),
    "zb-v": ((1, 4, 1), {"pipeline_schedule": "zb-v", "gradient_accumulation_steps": 8}),
}


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.job")
    yield from kept(rank_pool, 4, "hccl")


def large_model() -> Any:
    """A model whose weights and optimizer states weigh more than all else."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama",
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def full_rows() -> list[dict[str, torch.Tensor]]:
    """Sequences without padding, and so without a mask."""
    ids = torch.arange(64 * LENGTH).view(64, LENGTH) % 1024
    return [{"input_ids": row, "labels": row} for row in ids]


def held(trainer: Any) -> tuple[str, set[str], int]:
    """Return the dry run's report, the layers this rank holds, and the most bytes it had on its device."""
    from hf_integration.dry_run import dry_run
    from npu_plugins.pipeline import hf_names

    peak = torch.npu.max_memory_allocated()
    module = trainer.deepspeed.module
    pipelined = trainer.parallel.pp > 1
    names = hf_names(module).values() if pipelined else [name for name, _ in module.named_parameters()]
    return dry_run(trainer.args, large_model(), LENGTH), {layer_of(name) for name in names}, peak


def layer_of(name: str) -> str:
    """Return the layer of a parameter, as `--dry_run` names it."""
    parts = name.split(".")
    if "layers" in parts:
        return ".".join(parts[: parts.index("layers") + 2])
    return ".".join(parts[:-1])


def measured(run: Run, folder: Path) -> tuple[str, set[str], int]:
    """Train, and return what `held` found, less what lay on the device before."""
    gc.collect()
    before = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    text, layers, peak = train_on_rank(run, folder, "hccl").after
    return text, layers, peak - before


@pytest.mark.npu
@pytest.mark.parametrize("name", LAYOUTS)
def test_it_foretells_layers_and_memory(four: Ranks, name: str, tmp_path: Path) -> None:
    layout, flags = LAYOUTS[name]
    run = Run(
        steps=2, flags=flags, trainer={"model": large_model(), "train_dataset": full_rows()}, after=held
    ).at(*layout)
    for rank, (text, layers, peak) in enumerate(four.run(measured, run, tmp_path, timeout=250)):
        line = next(line.split(maxsplit=6) for line in text.splitlines() if re.match(rf" +{rank} ", line))
        if layout[1] > 1:
            assert {layer for stage in line[6].split("; ") for layer in spelled_out(stage)} == layers
        assert peak / 2**20 == pytest.approx(float(line[4]), rel=TOLERANCE)


def spelled_out(stage: str) -> list[str]:
    """Return the layers that ``0: model.embed_tokens, model.layers.0–3`` stands for."""
    found = []
    for name in stage.split(": ")[1].split(", "):
        span = re.fullmatch(r"(.*)\.(\d+)–(\d+)", name)
        numbers = range(int(span[2]), int(span[3]) + 1) if span else ()
        found += [f"{span[1]}.{number}" for number in numbers] if span else [name]
    return found
