"""What a divided model cannot have is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from hf_integration.engines import make_engine
from hf_integration.errors import TrainingInputError
from hf_integration.parallel_settings import ParallelSettings
from hf_integration.unsupported import check_arguments

CASES: dict[str, Any] = {
    "auto_find_batch_size": True,
    "use_liger_kernel": True,
    "neftune_noise_alpha": 0.1,
    "bf16_full_eval": True,
    "eval_use_gather_object": True,
    "debug": "underflow_overflow",
    "optim": "adafactor",
    "train_sampling_strategy": "batch_rebalance",
    "ddp_find_unused_parameters": False,
    "ddp_bucket_cap_mb": 25,
    "ddp_broadcast_buffers": True,
}


def arguments(folder: Path, **flags: Any) -> Any:
    """Arguments as they are when they are checked, of a job with two ranks a block."""
    args: Any = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **flags)
    args.parallel = ParallelSettings(tp=2)
    return args


@pytest.mark.parametrize("name", CASES)
def test_what_a_divided_model_cannot_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingInputError, match=f"^{name} is .*, which with tensor or pipeline parallelism"):
        check_arguments(arguments(tmp_path, **{name: CASES[name]}))


@pytest.mark.parametrize(
    ("name", "value"), [("split_batches", True), ("dispatch_batches", True), ("even_batches", False)]
)
def test_accelerate_s_own_ways_to_deal_batches(name: str, value: bool, tmp_path: Path) -> None:
    with pytest.raises(TrainingInputError, match=f"accelerator_config's {name} is {value}"):
        check_arguments(arguments(tmp_path, accelerator_config={name: value}))


def test_the_defaults_are_taken(tmp_path: Path) -> None:
    check_arguments(arguments(tmp_path))


def test_recomputation_is_read_by_names_that_transformers_5_20_has_too(tmp_path: Path) -> None:
    args = arguments(
        tmp_path, gradient_checkpointing=True, gradient_checkpointing_kwargs={"every_n_layers": 2}
    )
    args.parallel = ParallelSettings(pp=2)
    for name in ("activation_checkpointing", "activation_checkpointing_kwargs"):
        vars(args).pop(name, None)
    with pytest.raises(TrainingInputError, match="gradient_checkpointing_kwargs is {'every_n_layers': 2}"):
        check_arguments(args)


@pytest.mark.parametrize("own", [True, False], ids=["the program's", "the configuration's"])
def test_adagrad_with_zero(own: bool) -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adagrad(module.parameters()) if own else None
    config: dict[str, Any] = {"zero_optimization": {"stage": 1}}
    config |= {} if own else {"optimizer": {"type": "Adagrad", "params": {}}}
    mesh: Any = None  # it is refused before the mesh is looked at
    with pytest.raises(TrainingInputError, match="^Adagrad with ZeRO stage 1 fails in DeepSpeed"):
        make_engine(module, mesh, config, optimizer)
