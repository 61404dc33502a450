"""What ranks run in test_conversion.py: a Trainer's checkpoint, and DeepSpeed going on from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.hf_integration.divided import Run, make_model, train_on_rank
from tests.pipeline.layout_cases import states_of
from tests.pipeline.three_axes_cases import start

FAMILY = "qwen2"
STEP = 2
KEYS = ("fp32", "exp_avg", "exp_avg_sq")
States = dict[str, dict[str, torch.Tensor]]


def save(directory: str, tp: int, pp: int) -> tuple[States, list[float]]:
    """Train in bf16 with the Trainer, which saves; return what the engine held, gathered by other means."""
    flags = {"bf16": True, "save_strategy": "steps", "save_steps": STEP}
    run = replace(Run(FAMILY, flags=flags, after=held, steps=STEP), micro_batches=4)
    record = train_on_rank(run.at(tp, pp, dist.get_world_size() // (tp * pp)), Path(directory), "gloo")
    return record.after, record.values("learning_rate")


def resume(checkpoint: str, directory: str) -> list[tuple[float, float]]:
    """Train two more steps from a checkpoint at tp 2 × pp 2; return losses and gradient norms."""
    flags = {"bf16": True, "allow_layout_change": True}
    run = Run(FAMILY, flags=flags, steps=STEP + 2, resume=checkpoint)
    record = train_on_rank(run.at(2, 2, 1), Path(directory), "gloo")
    return [
        (each["loss"], each["grad_norm"])
        for each in record.log
        if each.get("step", 0) > STEP and "loss" in each
    ]


def held(trainer: Any) -> States:
    """Every parameter's master weight and moments, under the model's names."""
    from npu_plugins.pipeline import hf_names

    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, hf_names(trainer.deepspeed.module))
    everywhere = {local: name for each in names for local, name in each.items()}
    return {everywhere[local]: each for local, each in states_of(trainer.deepspeed).items()}


def go_on(folder: str, stage: int) -> States:
    """Load the universal checkpoint with DeepSpeed's ZeRO; return what its optimizer then has."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    mesh = start("gloo", 1, 1)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"load_universal": True},
    }
    model = make_model(FAMILY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config, mpu=mesh)[0]
    engine.load_checkpoint(folder)
    assert engine.global_steps == STEP
    group = engine.optimizer.param_groups[0]
    assert group["lr"] != 1.0
    assert group["weight_decay"] == 0.01, "which differs between the Trainer's groups"
    found: States = {}
    for name, parameter in engine.module.named_parameters():
        found[name] = {key: safe_get_full_optimizer_state(parameter, key) for key in KEYS[1:]}
        found[name]["fp32"] = safe_get_full_fp32_param(parameter)
    engine.destroy()
    return {name: {key: value.cpu() for key, value in each.items()} for name, each in found.items()}
