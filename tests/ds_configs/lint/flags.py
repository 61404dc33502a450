"""Flags of the HF Trainer that say the same as a configuration fixes, so that HF finds no mismatch."""

from __future__ import annotations

from typing import Any


def flags_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return TrainingArguments' values for one rank, in bf16 unless the file says fp16."""
    optimizer = _block(_block(config, "optimizer"), "params")
    scheduler = _block(_block(config, "scheduler"), "params")
    steps = _fixed(config, "gradient_accumulation_steps", 1)
    beta1, beta2 = _fixed(optimizer, "betas", (0.9, 0.999))
    fp16 = bool(_fixed(_block(config, "fp16"), "enabled", False))
    bf16 = bool(_fixed(_block(config, "bf16"), "enabled", not fp16))
    micro = _fixed(config, "train_batch_size", 2 * steps) // steps
    return {
        "world_size": 1,
        "per_device_train_batch_size": _fixed(config, "train_micro_batch_size_per_gpu", micro),
        "gradient_accumulation_steps": steps,
        "max_grad_norm": _fixed(config, "gradient_clipping", 1.0),
        "learning_rate": _fixed(optimizer, "lr", _fixed(scheduler, "warmup_max_lr", 1e-4)),
        "adam_beta1": beta1,
        "adam_beta2": beta2,
        "adam_epsilon": _fixed(optimizer, "eps", 1e-8),
        "weight_decay": _fixed(optimizer, "weight_decay", 0.0),
        "warmup_steps": _fixed(scheduler, "warmup_num_steps", 0),
        "save_on_each_node": False,
        "fp16_full_eval": False,
        "bf16_full_eval": False,
        "fp16": fp16,
        "bf16": bf16,
    }


def total_steps(config: dict[str, Any]) -> int:
    """Return the steps of a run that fits ``scheduler.params.total_num_steps``."""
    return _fixed(_block(_block(config, "scheduler"), "params"), "total_num_steps", 1000)


def _block(values: dict[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _fixed(values: dict[str, Any], key: str, otherwise: Any) -> Any:
    value = values.get(key)
    return otherwise if value in ("auto", None) else value
