"""The DeepSpeed configuration of a loop of one's own, every ``"auto"`` filled."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelerate.utils import DummyOptim, DummyScheduler
from transformers import PreTrainedModel

from ds_configs.errors import DsConfigError
from ds_configs.resolve import TrainingRun, resolve, width_of_config
from hf_integration.errors import TrainingInputError
from hf_integration.prepared import Given

CLIPPING_OF_DEEPSPEED = 1.0
"""Where a configuration says nothing else, or "auto": of accelerate 1.15 and of DeepSpeed 0.19.8 alike."""


@dataclass(frozen=True)
class LoopSettings:
    """What the accelerator, and not the configuration, says of a loop."""

    replicas: int
    micro_batches: int
    """Batches, or parts of a batch, of an optimizer step."""
    parts: int
    """Into which a batch is cut."""
    precision: str
    """bf16, fp16 or no."""
    with_file: bool
    """Whether DeepSpeed was asked for by a configuration, and not only by degrees."""


def loop_config(
    config: Mapping[str, Any], settings: LoopSettings, model: PreTrainedModel, given: Given
) -> dict[str, Any]:
    """Return the configuration for the engine; numbers in ``config`` go before what the loop has.

    Args:
        config: with degrees and flags in it already.
        settings: of the loop.
        model: whose width fills bucket sizes.
        given: to ``prepare``: the loader's batch size and the optimizer's rates fill the rest.

    Raises:
        TrainingInputError: the configuration contradicts the loader, or DeepSpeed would refuse it.
    """
    defaults: Mapping[str, Any] = getattr(given.own_optimizer, "defaults", {})
    if isinstance(given.optimizer, DummyOptim):
        defaults = {"lr": given.optimizer.lr, "weight_decay": given.optimizer.weight_decay}
    stand_in = given.scheduler if isinstance(given.scheduler, DummyScheduler) else DummyScheduler(None)
    optimizer, scheduler = (_parameters(config, name) for name in ("optimizer", "scheduler"))
    clipping = CLIPPING_OF_DEEPSPEED if settings.with_file else 0.0
    try:
        run = TrainingRun(
            world_size=settings.replicas,
            per_device_train_batch_size=-(-given.batch_size // settings.parts),
            gradient_accumulation_steps=settings.micro_batches,
            max_grad_norm=_number(config.get("gradient_clipping"), clipping),
            learning_rate=_number(optimizer.get("lr"), defaults.get("lr", 5e-5)),
            weight_decay=_number(optimizer.get("weight_decay"), defaults.get("weight_decay", 0.0)),
            adam_epsilon=_number(optimizer.get("eps"), 1e-8),
            warmup_steps=_number(scheduler.get("warmup_num_steps"), stand_in.warmup_num_steps),
            max_steps=int(_number(scheduler.get("total_num_steps"), stand_in.total_num_steps or -1)),
            fp16=settings.precision == "fp16",
            bf16=settings.precision == "bf16",
        )
        width = width_of_config(model.config.to_dict(), "the model's configuration")
        filled = resolve(config, run, width).config
    except DsConfigError as error:
        raise TrainingInputError(f"the DeepSpeed configuration: {error}") from error
    filled.setdefault("gradient_clipping", run.max_grad_norm)
    filled.setdefault("steps_per_print", sys.maxsize)
    filled["zero_allow_untested_optimizer"] = True
    return filled


def _parameters(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    found = section.get("params") if isinstance(section, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _number(value: Any, otherwise: float) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise
