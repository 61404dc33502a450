"""What is generated: accepted by DeepSpeed itself, "auto" where HF fills and nowhere else, quickly."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_configs.errors import DsConfigError
from ds_configs.generate import ConfigRequest, generate, to_text
from ds_configs.generate.options import recipes, section
from ds_configs.lint import lint_text
from ds_configs.schema import load_schema
from tests.ds_configs.generate.requests import request_fields
from tests.ds_configs.oracle import Oracle
from tests.ds_configs.resolve.runs import run_flags

EXAMPLES = 250
PLAIN = {"target": "deepspeed", "micro_batch": 2, "optimizer_params": {"lr": 1e-4}}


def is_one_sentence(error: DsConfigError) -> bool:
    """Whether a refusal reads as one: no line break, no Python error inside."""
    text = str(error)
    return len(text) > 20 and "\n" not in text and "Error" not in text


def possible(fields: dict[str, Any]) -> ConfigRequest | None:
    """The request of ``fields``, or None where it is refused, which must be in one sentence."""
    try:
        request = ConfigRequest(**fields)
        generate(request)
    except DsConfigError as error:
        assert is_one_sentence(error)
        return None
    return request


def test_deepspeed_accepts_whatever_is_generated_for_it(oracle: Oracle) -> None:
    accepted = 0

    @settings(max_examples=EXAMPLES)
    @given(request_fields("deepspeed"))
    def check(fields: dict[str, Any]) -> None:
        nonlocal accepted
        request = possible(fields)
        if request is None:
            return
        config = generate(request)
        assert '"auto"' not in json.dumps(config)
        replicas = request.parallel.dp if request.parallel else batch_replicas(config)
        ranks = replicas * (request.tp if request.autotp else 1)
        assert oracle.deepspeed(config, ranks) == ""
        assert lint_errors(config) == []
        accepted += 1

    check()
    assert accepted > EXAMPLES / 3


def lint_errors(config: dict[str, Any]) -> list[str]:
    """What the linter calls an error in ``config``."""
    return [found.reason for found in lint_text(to_text(config)).findings if found.severity == "error"]


def batch_replicas(config: dict[str, Any]) -> int:
    """The data-parallel ranks that a configuration is whole for."""
    micro = config.get("train_micro_batch_size_per_gpu", 1)
    product = micro * config.get("gradient_accumulation_steps", 1)
    return config.get("train_batch_size", product) // product


def test_deepspeed_accepts_whatever_is_generated_for_hf_once_hf_has_filled_it(oracle: Oracle) -> None:
    accepted = 0

    @settings(max_examples=EXAMPLES)
    @given(request_fields("hf"))
    def check(fields: dict[str, Any]) -> None:
        nonlocal accepted
        request = possible(fields)
        if request is None:
            return
        config = generate(request)
        flags = agreeing_flags(config, request)
        steps = config.get("scheduler", {}).get("params", {}).get("total_num_steps", "auto")
        total = number(steps, 9000)
        filled = oracle.ask("hf", config=config, run=flags, model={"hidden_size": 64}, total=total)
        assert isinstance(filled, dict), filled
        assert '"auto"' not in json.dumps(filled)
        assert oracle.deepspeed(filled, flags["world_size"]) == ""
        assert lint_errors(config) == []
        accepted += 1

    check()
    assert accepted > EXAMPLES / 2


def agreeing_flags(config: dict[str, Any], request: ConfigRequest) -> dict[str, Any]:
    """The flags of a run that contradicts nothing in ``config``."""
    micro = number(config["train_micro_batch_size_per_gpu"], 1)
    accumulation = number(config["gradient_accumulation_steps"], 1)
    whole = number(config["train_batch_size"], micro * accumulation)
    if config["train_micro_batch_size_per_gpu"] == "auto":
        micro = whole // accumulation
    elif config["gradient_accumulation_steps"] == "auto":
        accumulation = whole // micro
    flags: dict[str, Any] = {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "max_grad_norm": number(config.get("gradient_clipping", 1.0), 1.0),
    }
    params = config.get("optimizer", {}).get("params", {})
    flags["learning_rate"] = number(params.get("lr", 1e-3), 1e-3)
    flags["weight_decay"] = number(params.get("weight_decay", 0.0), 0.0)
    flags["adam_epsilon"] = number(params.get("eps", 1e-8), 1e-8)
    betas = params.get("betas", "auto")
    if betas != "auto":
        flags["adam_beta1"], flags["adam_beta2"] = betas
    warm = config.get("scheduler", {}).get("params", {})
    flags["learning_rate"] = number(warm.get("warmup_max_lr", "auto"), flags["learning_rate"])
    flags["warmup_steps"] = number(warm.get("warmup_num_steps", 0), 0)
    precision = "fp32" if request.precision == "auto" else request.precision
    return run_flags(whole // (micro * accumulation), precision, **flags)


def number(value: Any, otherwise: Any) -> Any:
    """``value``, or ``otherwise`` for "auto"."""
    return otherwise if value == "auto" else value


def test_tables_hold_keys_that_deepspeed_knows() -> None:
    """The schema is read from DeepSpeed itself; use_reentrant is read beside it (pipe/engine.py:210)."""
    schema = load_schema()
    above = {name: ("zero_optimization", name) for name in ("offload_optimizer", "offload_param")}
    for name in ("zero_optimization", *above, "fp16", "bf16", "activation_checkpointing", "pipeline", "aio"):
        path = above.get(name, (name,))
        unknown = set(section(name)) - set(schema.children(path))
        assert unknown <= {"use_reentrant"}, name
        found = {key: schema.key((*path, key)) for key in section(name)}
        assert [key for key, known in found.items() if known and known.removed] == []
        # Written for one preset only, which must equal its document; a note says that it does nothing.
        unread = [key for key, known in found.items() if known and not known.consumed]
        assert unread == (["allgather_partitions"] if name == "zero_optimization" else [])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_hf_fills_all_it_can_and_is_asked_nothing_else(stage: int) -> None:
    config = generate(ConfigRequest("hf", stage, scheduler="WarmupDecayLR"))
    autos = sorted(key for key, value in flat(config) if value == "auto")
    by_stage = [[], ["reduce_bucket_size"], ["reduce_bucket_size"]]
    stage3 = ["reduce_bucket_size", "stage3_param_persistence_threshold", "stage3_prefetch_bucket_size"]
    zero = [*by_stage, stage3][stage]
    assert autos == sorted(
        [
            *(f"zero_optimization.{key}" for key in zero),
            *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
            *("gradient_clipping", "fp16.enabled", "bf16.enabled"),
            *(f"optimizer.params.{key}" for key in ("lr", "betas", "eps", "weight_decay")),
            *(f"scheduler.params.{key}" for key in ("warmup_min_lr", "warmup_max_lr")),
            *(f"scheduler.params.{key}" for key in ("warmup_num_steps", "total_num_steps")),
        ]
    )


def flat(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted keys with their values."""
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        found += flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 2), ("fp16", 2)])
def test_buckets_fit_hccl_s_buffer(precision: str, width: int) -> None:
    """A message larger than HCCL_BUFFSIZE, 200 MB by default, is slow (CANN 8.5, HCCL user guide)."""
    for stage in (1, 2, 3):
        fields = {**PLAIN, "stage": stage, "precision": precision, "hidden": 16384}
        zero = generate(ConfigRequest(**fields))["zero_optimization"]
        buckets = [value for key, value in zero.items() if key.endswith("bucket_size")]
        assert len(buckets) == 2
        assert all(value * width <= 200e6 for value in buckets)


def test_stage_3_follows_the_width_as_hf_does() -> None:
    zero = generate(ConfigRequest(**PLAIN, stage=3, hidden=4096))["zero_optimization"]
    assert zero["stage3_prefetch_bucket_size"] == int(0.9 * 4096 * 4096)
    assert zero["stage3_param_persistence_threshold"] == 40960


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"micro_batch": 4, "accumulation": 2, "world_size": 8}, (64, 4, 2)),
        ({"train_batch": 64, "accumulation": 2, "world_size": 8}, (64, 4, 2)),
        ({"train_batch": 64, "micro_batch": 4, "world_size": 8}, (64, 4, 2)),
        ({"train_batch": 64, "micro_batch": 4, "accumulation": 2, "world_size": 8}, (64, 4, 2)),
        ({"micro_batch": 4, "accumulation": 2, "world_size": 16, "pp": 2}, (64, 4, 2)),
        ({"micro_batch": 4, "accumulation": 2, "world_size": 16, "tp": 2, "tp_by": "mpu"}, (64, 4, 2)),
        ({"micro_batch": 4, "world_size": 8}, (32, 4, 1)),
        ({"micro_batch": 4, "accumulation": 2}, (None, 4, 2)),
        ({"train_batch": 256, "accumulation": 4}, (256, None, 4)),
    ],
)
def test_two_of_the_batch_triple_give_the_third(given: dict[str, int], expected: tuple) -> None:
    config = generate(ConfigRequest("deepspeed", 1, optimizer_params={"lr": 1e-4}, **given))
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert tuple(config.get(key) for key in keys) == expected


def test_autotp_leaves_the_train_batch_to_deepspeed_which_counts_tp_ranks() -> None:
    fields = {"micro_batch": 4, "accumulation": 2, "world_size": 8, "tp": 2}
    config = generate(ConfigRequest("deepspeed", 1, optimizer_params={"lr": 1e-4}, **fields))
    assert "train_batch_size" not in config
    assert config["tensor_parallel"] == {"autotp_size": 2}


def test_adam_is_adam_and_not_adamw() -> None:
    """DeepSpeed takes "Adam" for AdamW unless it is told otherwise (engine.py:2487)."""
    params = generate(ConfigRequest("hf", 1, optimizer="adam"))["optimizer"]["params"]
    assert params["adam_w_mode"] is False


def test_sgd_under_zero_has_the_leave_that_deepspeed_asks_for() -> None:
    assert generate(ConfigRequest("hf", 1, optimizer="SGD"))["zero_allow_untested_optimizer"] is True
    assert "zero_allow_untested_optimizer" not in generate(ConfigRequest("hf", 0, optimizer="SGD"))


def test_none_leaves_a_key_out() -> None:
    request = ConfigRequest("hf", 2, clipping=None, zero={"allgather_bucket_size": None})
    assert "gradient_clipping" not in generate(request)
    assert "allgather_bucket_size" not in generate(request)["zero_optimization"]


def test_nvme_brings_its_path_and_aio() -> None:
    fields = {"offload_optimizer": "nvme", "offload_param": "cpu", "nvme_path": "/local_nvme"}
    config = generate(ConfigRequest("hf", 3, aio={"queue_depth": 32}, **fields))
    assert config["zero_optimization"]["offload_optimizer"]["nvme_path"] == "/local_nvme"
    assert "nvme_path" not in config["zero_optimization"]["offload_param"]
    assert config["aio"]["queue_depth"] == 32


NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.text(), NUMBERS),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


@given(VALUES)
def test_text_reads_back_with_types(value: Any) -> None:
    again = json.loads(to_text(value))
    assert again == value and repr(again) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2e8, "2e8"),
        (1.5e9, "1.5e9"),
        (200_000_000, "200000000"),
        (1.0, "1.0"),
        (1e-8, "1e-08"),
        (123456789.0, "1.23456789e8"),
    ],
)
def test_large_floats_are_written_as_people_write_them(value: float, text: str) -> None:
    assert to_text(value) == f"{text}\n"


def test_generating_imports_nothing_heavy() -> None:
    """It must answer in 150 ms; a clock on a busy machine would lie, the modules do not."""
    code = (
        "import sys\nfrom ds_configs.cli import main\n"
        "status = main(['generate', '--for', 'deepspeed', '--stage', '3', '--micro-batch', '1', "
        "'--model', 'llama-1b', '--optimizer', 'AdamW', 'lr=1e-4'])\n"
        "heavy = {'torch', 'deepspeed', 'transformers', 'numpy', 'rich', 'matplotlib', 'tree_sitter', "
        "'pydantic', 'hf_integration'}\n"
        "print(sorted(heavy & set(sys.modules)), len(sys.modules), file=sys.stderr)\nsys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded, count = done.stderr.rsplit("] ", 1)
    assert loaded == "["
    assert int(count) < 250


def test_every_optimizer_and_scheduler_can_be_had() -> None:
    for kind in ("optimizer", "scheduler"):
        for name, recipe in recipes(f"{kind}s").items():
            params = {key: 3 for key, each in recipe.params.items() if each.needed}
            fields = {**PLAIN, f"{kind}_params": params, kind: name}
            assert generate(ConfigRequest(**fields, stage=0))[kind]["type"] == name
