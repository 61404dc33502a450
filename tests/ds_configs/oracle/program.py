"""Answers questions about configurations from the installed packages themselves: `python -m` this module.

A question is one JSON line, its answer another. An error of DeepSpeed's or HF's is answered as its text.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hf_integration.host_only import keep_to_the_host
from tests.ds_configs.memory.autograd_bytes import live
from tests.ds_configs.models.transformers_counts import parameter_counts

HIDDEN_KEYS = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


class Ranks:
    """The part of an mpu that DeepSpeedConfig asks."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def get_data_parallel_world_size(self) -> int:
        """The number of data-parallel ranks."""
        return self._replicas


def deepspeed(config: dict[str, Any], replicas: int) -> str:
    """What DeepSpeedConfig says against ``config``; "" for nothing."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        DeepSpeedConfig(config, mpu=Ranks(replicas))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def hf(config: dict[str, Any], run: dict[str, Any], model: dict[str, Any], total: int) -> Any:
    """``config`` as the Trainer hands it to DeepSpeed, or the text of its refusal.

    The calls, in order: TrainingArguments.__post_init__, Accelerator.__init__, deepspeed_init,
    Accelerator._prepare_deepspeed; of the last one only the part about the configuration, whose values
    (``kwargs``) are typed here, as it cannot be called without a model and an engine.
    """
    from accelerate.utils import DeepSpeedPlugin
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    args = SimpleNamespace(**run)
    args.get_warmup_steps = lambda steps: TrainingArguments.get_warmup_steps(args, steps)
    try:
        filled = HfTrainerDeepSpeedConfig(config)
        filled.trainer_config_process(args)
        plugin = DeepSpeedPlugin(hf_ds_config=filled)
        plugin.set_mixed_precision("fp16" if args.fp16 else "bf16" if args.bf16 else "no")
        wrapped = SimpleNamespace(config=SimpleNamespace(**model))
        filled.trainer_config_finalize(args, wrapped, total)
        kwargs = {"zero_optimization.stage3_gather_16bit_weights_on_model_save": False}
        if any(plugin.is_auto(f"zero_optimization.{key}") for key in HIDDEN_KEYS):
            hidden = wrapped.config.hidden_size
            values = (hidden * hidden, int(0.9 * hidden * hidden), 10 * hidden)
            kwargs |= {
                f"zero_optimization.{key}": value for key, value in zip(HIDDEN_KEYS, values, strict=True)
            }
        plugin.deepspeed_config_process(must_match=False, **kwargs)
    except (ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    result = dict(plugin.deepspeed_config)
    del result["steps_per_print"]  # infinity, which JSON cannot hold
    return result


def widths() -> list[list[Any]]:
    """Of every family: its name, what save_pretrained writes, and the width that HF's rule finds."""
    from transformers import CONFIG_MAPPING
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    found = []
    for family in CONFIG_MAPPING:
        try:
            config = CONFIG_MAPPING[family]()
        except Exception as error:
            found.append([family, None, f"{type(error).__name__}"])
            continue
        filled = HfTrainerDeepSpeedConfig({"zero_optimization": {"stage": 3, HIDDEN_KEYS[2]: "auto"}})
        args = SimpleNamespace(get_warmup_steps=lambda steps: 0)
        try:
            filled.trainer_config_finalize(args, SimpleNamespace(config=config), 1)
            width = filled.config["zero_optimization"][HIDDEN_KEYS[2]] / 10
        except ValueError:
            width = None
        found.append([family, json.loads(config.to_json_string()), width])
    return found


def defaults(names: list[str]) -> dict[str, Any]:
    """The defaults of TrainingArguments' fields."""
    from dataclasses import fields

    from transformers import TrainingArguments

    return {each.name: each.default for each in fields(TrainingArguments) if each.name in names}


def steps(run: dict[str, Any]) -> int:
    """The optimizer steps of a run as the Trainer counts them over accelerate's share of the batches."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler
    from transformers import Trainer

    args = SimpleNamespace(**run)
    whole = BatchSampler(
        SequentialSampler(range(args.num_examples)),
        args.per_device_train_batch_size,
        args.dataloader_drop_last,
    )
    shard = BatchSamplerShard(whole, num_processes=args.world_size, process_index=0)
    trainer: Any = SimpleNamespace(
        get_total_train_batch_size=lambda args: 1, get_sp_size=lambda: 1, num_examples=lambda loader: 1
    )
    return Trainer.set_initial_training_values(trainer, args, shard)[-1]


def engines(configs: list[dict[str, Any]]) -> list[str]:
    """What deepspeed.initialize says against each of the configurations; "" for nothing."""
    import torch
    from deepspeed import initialize

    errors = []
    launched = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    with mock.patch.dict(os.environ, launched):
        for config in configs:
            model = torch.nn.Linear(4, 4)
            try:
                initialize(model=model, model_parameters=model.parameters(), config=config)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
            else:
                errors.append("")
    return errors


def schedulers(names: list[str]) -> dict[str, list[str]]:
    """The parameters that torch's schedulers of these names need besides the optimizer."""
    from inspect import signature

    from torch.optim import lr_scheduler

    return {
        name: [
            each.name
            for each in signature(getattr(lr_scheduler, name)).parameters.values()
            if each.default is each.empty
            and each.kind == each.POSITIONAL_OR_KEYWORD
            and each.name != "optimizer"
        ]
        for name in names
    }


def main() -> None:
    """Answer until the questions end."""
    keep_to_the_host()
    answers, sys.stdout = sys.stdout, sys.stderr  # what the packages print is no answer
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    import deepspeed as package

    # On the CPU DeepSpeed would compile its shared-memory collectives, for half a minute of both cores.
    package.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    package.init_distributed("gloo")
    known: dict[str, Callable[..., Any]] = {
        each.__name__: each
        for each in (
            deepspeed,
            engines,
            hf,
            widths,
            defaults,
            steps,
            schedulers,
            live,
            parameter_counts,
        )
    }
    for line in sys.stdin:
        details = json.loads(line)
        print(json.dumps(known[details.pop("question")](**details)), file=answers, flush=True)


if __name__ == "__main__":
    main()
