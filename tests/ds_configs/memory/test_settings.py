"""What of a ds_config.json the memory model reads, against what DeepSpeed 0.19.8 parses."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.memory import Buckets
from ds_configs.memory.settings import assumptions, job_of_settings, read_settings, tensor_parallel_size
from ds_configs.models import ModelShape, find_model
from ds_configs.parallel import ParallelConfig

SHAPE = find_model("llama-2-7b")


def job(config: dict[str, Any], **flags: Any) -> Any:
    """The job of a configuration on eight ranks."""
    return job_of_settings(config, SHAPE, ParallelConfig(dp=8), **flags)


def test_stage_dtype_offload_batch_and_buckets_come_from_the_file() -> None:
    found = job(
        {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
            "optimizer": {"type": "Lion"},
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu"},
                "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
                "reduce_bucket_size": 2e8,
                "stage3_prefetch_bucket_size": 1000,
                "stage3_param_persistence_threshold": 10,
                "stage3_max_live_parameters": 5e8,
                "stage3_max_reuse_distance": 6e8,
                "sub_group_size": 1e8,
                "overlap_comm": False,
            },
        }
    )
    assert (found.stage, found.dtype, found.gradient_dtype, found.optimizer_states) == (3, "bf16", "fp32", 1)
    assert (found.micro_batch, found.accumulation) == (4, 2)
    assert (found.offload_optimizer, found.offload_param) == ("cpu", "nvme")
    assert found.buckets == Buckets(
        reduce=200_000_000, prefetch=1000, persistence=10, max_live=500_000_000, reuse=600_000_000,
        sub_group=100_000_000, overlap_comm=False,
    )  # fmt: skip


def test_buckets_default_to_deepspeeds_own() -> None:
    """Read out of DeepSpeed's model of zero_optimization, not remembered."""
    spec = importlib.util.find_spec("deepspeed")
    assert spec is not None and spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0], "runtime", "zero", "config.py").read_text()
    defaults: dict[str, float] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call) and node.value.args:
            inner = node.value.args[0]
            if isinstance(inner, ast.Call) and inner.args and isinstance(inner.args[0], ast.Constant):
                defaults[node.target.id] = inner.args[0].value  # type: ignore[union-attr]
    ours = Buckets()
    assert ours.reduce == defaults["reduce_bucket_size"]
    assert ours.prefetch == defaults["prefetch_bucket_size"]
    assert ours.persistence == defaults["param_persistence_threshold"]
    assert ours.max_live == defaults["max_live_parameters"]
    assert ours.reuse == defaults["max_reuse_distance"]
    assert ours.sub_group == defaults["sub_group_size"]


def test_auto_becomes_what_hf_fills_in() -> None:
    zero = {
        "stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    }  # fmt: skip
    found = job(
        {"zero_optimization": zero, "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}
    )
    assert found.buckets.reduce == 4096**2
    assert found.buckets.prefetch == int(0.9 * 4096**2)
    assert found.buckets.persistence == 10 * 4096
    assert (found.micro_batch, found.dtype) == (1, "bf16")


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ({"train_batch_size": 256, "gradient_accumulation_steps": 4}, (8, 4)),
        ({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4}, (4, 8)),
        ({"train_batch_size": 256}, (32, 1)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": "auto"}, (8, 1)),
        ({"train_micro_batch_size_per_gpu": 4}, (4, 1)),
        ({"train_batch_size": 64, "tensor_parallel": {"autotp_size": 2}}, (4, 1)),
    ],
)
def test_the_micro_batch_follows_from_the_train_batch(file: dict[str, Any], found: tuple[int, int]) -> None:
    """As DeepSpeed derives it, which counts AutoTP's ranks as data-parallel ones."""
    taken = job(file)
    assert (taken.micro_batch, taken.accumulation) == found


def test_what_is_assumed_is_said() -> None:
    autos = {"train_micro_batch_size_per_gpu": "auto", "fp16": {"enabled": "auto"}}
    assert [line.split(":")[0] for line in assumptions(autos)] == [
        'train_micro_batch_size_per_gpu is "auto"',
        'fp16.enabled is "auto"',
    ]
    assert assumptions(autos, micro_batch=4, dtype="fp16") == []
    assert assumptions({**autos, "bf16": {"enabled": True}}, micro_batch=4) == []


def test_flags_win_and_without_a_precision_the_file_means_fp32() -> None:
    assert job({"zero_optimization": {"stage": 2}}).dtype == "fp32"
    assert job({"zero_optimization": {"stage": 2}}, stage=1, dtype="fp16", micro_batch=None).stage == 1
    assert job({}).dtype == "bf16"


def test_offload_param_below_stage_3_is_ignored_as_deepspeed_does() -> None:
    zero = {"stage": 2, "offload_param": {"device": "cpu"}}
    assert job({"zero_optimization": zero}).offload_param == "none"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"zero_optimization": {"stage": "2"}}, "stage is '2'"),
        ({"zero_optimization": {"reduce_bucket_size": 2.5}}, "reduce_bucket_size is 2.5"),
        ({"zero_optimization": [2]}, "zero_optimization is .* must be an object"),
        (
            {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme"}}},
            "nvme needs ZeRO stage 3",
        ),
        ({"train_batch_size": 7}, "train_batch=7 is no multiple of accumulation 1 × 8"),
        ({"train_micro_batch_size_per_gpu": "8"}, "micro_batch_size_per_gpu is '8'"),
        ({"zero_optimization": {"stage": 4}}, "stage is 4"),
    ],
)
def test_what_cannot_be_read_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(DsConfigError, match=reason):
        job(config)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"tensor_parallel": {"autotp_size": 4}}))
    assert tensor_parallel_size(read_settings(str(path))) == 4
    path.write_text("[]")
    with pytest.raises(DsConfigError, match="not a JSON object"):
        read_settings(str(path))
    path.write_text('{"model_type": "llama"}')
    with pytest.raises(DsConfigError, match="give it to --model"):
        read_settings(str(path))
    with pytest.raises(DsConfigError, match="cannot be read"):
        read_settings(str(tmp_path / "absent.json"))


def test_by_size_shapes_work_too() -> None:
    shape = ModelShape.from_parameters("1B")
    assert job_of_settings({}, shape, ParallelConfig()).shape is shape
