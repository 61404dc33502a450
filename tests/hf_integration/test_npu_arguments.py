"""`NpuTrainingArguments` takes, refuses and fills in what `TrainingArguments` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from hf_integration.npu_arguments import NpuTrainingArguments

STEPS = {"eval_strategy": "steps", "eval_steps": 10}
TAKEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "evaluation by steps turns evaluation on": {"do_eval": False, **STEPS},
    "evaluation as often as the log": {"eval_strategy": "steps", "logging_steps": 10},
    "shares of the steps": {"logging_steps": 0.5, "warmup_steps": 0.1},
    "a best model by its loss": {"load_best_model_at_end": True, **STEPS, "save_steps": 20},
    "a best model by its accuracy": {"metric_for_best_model": "accuracy", **STEPS},
    "settings as JSON": {"lr_scheduler_kwargs": '{"factor": 0.5}'},
    "tokens counted, by the old name": {"include_num_input_tokens_seen": True},
    "the cache emptied": {"torch_empty_cache_steps": 1},
    "batches read ahead": {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 2},
    "a list without reports": {"report_to": ["none"]},
}
REFUSED: dict[str, dict[str, Any]] = {
    "two precisions": {"fp16": True, "bf16": True},
    "an unknown strategy": {"eval_strategy": "sometimes"},
    "no steps between entries": {"logging_steps": 0},
    "a fraction above one": {"save_steps": 10.5},
    "a best model that is not saved": {"load_best_model_at_end": True, **STEPS, "save_steps": 15},
    "saves without evaluations": {"load_best_model_at_end": True, **STEPS, "save_strategy": "epoch"},
    "a plateau without evaluation": {"lr_scheduler_type": "reduce_lr_on_plateau"},
    "a cache emptied never": {"torch_empty_cache_steps": 0},
    "negative warm-up": {"warmup_steps": -1},
    "batches read ahead by nobody": {"dataloader_prefetch_factor": 2},
}


def both(folder: Path, flags: dict[str, Any]) -> list[Any]:
    """What both classes make of the flags: themselves as a dict, or their error."""
    found = []
    for kind in (TrainingArguments, NpuTrainingArguments):
        try:
            args = kind(output_dir=str(folder), use_cpu=True, **{"report_to": "none", **flags})
        except ValueError as error:
            found.append(str(error))
        else:
            found.append(args.to_dict())
    return found


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken(name: str, tmp_path: Path) -> None:
    wanted, found = both(tmp_path, TAKEN[name])
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    wanted, found = both(tmp_path, REFUSED[name])
    assert isinstance(wanted, str)
    assert found == wanted
