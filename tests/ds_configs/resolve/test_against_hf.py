"""What resolve fills, against transformers and accelerate themselves."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ds_configs.errors import DsConfigError
from ds_configs.generate import ConfigRequest, generate
from ds_configs.resolve import Document, TrainingRun, Width, resolve, width_of_config
from tests.ds_configs.generate.requests import request_fields
from tests.ds_configs.oracle import Oracle

EXAMPLES = 250
ACCELERATE_FILLS = {
    "zero_optimization": ("stage", "stage3_gather_16bit_weights_on_model_save"),
    "offload_optimizer": ("device",),
    "offload_param": ("device",),
}
HIDDEN = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
HF_FILLS = {
    "": (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    ),
    "optimizer.params": ("lr", "betas", "eps", "weight_decay"),
    "scheduler.params": ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"),
    "fp16": ("enabled",),
    "bf16": ("enabled",),
}


def node(config: dict[str, Any], path: str) -> Any:
    """The section at dotted ``path``; None where there is none."""
    found: Any = config
    for name in filter(None, path.split(".")):
        found = found.get(name)
        if found is None:
            return None
    return found


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Configurations with "auto" wherever HF or accelerate fill it, or a number, or nothing."""
    fields = draw(request_fields("hf"))
    try:
        config = generate(ConfigRequest(**fields))
    except DsConfigError:
        assume(False)
    for path, names in HF_FILLS.items():
        for name in names:
            section = node(config, path)
            if section is not None and name in section and draw(st.sampled_from([True, False, False])):
                section[name] = "auto"
    zero = config["zero_optimization"]
    for name in (*HIDDEN, *ACCELERATE_FILLS["zero_optimization"]):
        if draw(st.sampled_from([True, False, False, False])):
            zero[name] = "auto"
    for name in ("offload_optimizer", "offload_param"):
        if name in zero and draw(st.booleans()):
            zero[name]["device"] = "auto"
    for name in draw(st.lists(st.sampled_from(sorted(set(config) - {"zero_optimization"})), max_size=2)):
        config.pop(name, None)
    return config


@st.composite
def runs(draw: st.DrawFn, config: dict[str, Any]) -> TrainingRun:
    """Runs that mostly say what the numbers in ``config`` say."""
    precision = draw(st.sampled_from(["", "fp16", "bf16", "fp16_full_eval", "bf16_full_eval"]))
    if draw(st.booleans()):
        for name in ("fp16", "bf16"):
            precision = name if (config.get(name) or {}).get("enabled") is True else precision
    optimizer, scheduler = (node(config, f"{kind}.params") or {} for kind in ("optimizer", "scheduler"))
    micro = number(config.get("train_micro_batch_size_per_gpu"), draw(st.integers(1, 4)))
    accumulation = number(config.get("gradient_accumulation_steps"), draw(st.integers(1, 4)))
    train = number(config.get("train_batch_size"), micro * accumulation * draw(st.integers(1, 4)))
    beta1, beta2 = number(optimizer.get("betas"), [0.9, 0.95])
    warmup = number(scheduler.get("warmup_num_steps"), draw(st.sampled_from([0, 0.1, 20])))
    rate = number(optimizer.get("lr"), number(scheduler.get("warmup_max_lr"), 1e-3))
    return TrainingRun(
        world_size=max(1, train // (micro * accumulation)),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        max_grad_norm=number(config.get("gradient_clipping"), 0.7),
        learning_rate=rate,
        weight_decay=number(optimizer.get("weight_decay"), 0.02),
        adam_epsilon=number(optimizer.get("eps"), 1e-6),
        adam_beta1=beta1,
        adam_beta2=beta2,
        warmup_steps=warmup,
        max_steps=number(scheduler.get("total_num_steps"), draw(st.sampled_from([50, 9000]))),
        save_on_each_node=draw(st.sampled_from([False, False, True])),
        **({precision: True} if precision else {}),
    )


def number(value: Any, otherwise: Any) -> Any:
    """``value``, or ``otherwise`` for "auto" and nothing."""
    return otherwise if value in ("auto", None) else value


def without_additions(filled: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """HF's result without what accelerate adds to no effect: a precision switched off, an end to printing."""
    off = {key for key in ("fp16", "bf16") if key not in config and filled.get(key) == {"enabled": False}}
    kept = {key: value for key, value in filled.items() if key not in off}
    return {**kept, **{key: config[key] for key in ("steps_per_print",) if key in config}}


def test_same_values_as_hf_and_the_same_refusals(oracle: Oracle) -> None:
    """Whatever HF hands to DeepSpeed is what comes out; where HF refuses, so does resolve."""
    equal = refused = 0

    @settings(max_examples=EXAMPLES)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal equal, refused
        config = data.draw(configurations())
        run = data.draw(runs(config))
        before = copy.deepcopy(config)
        hf = oracle.ask("hf", config=config, run=asdict(run), model={"hidden_size": 64}, total=run.max_steps)
        try:
            resolution = resolve(config, run, Width(64, "a model"))
        except DsConfigError as error:
            assert "\n" not in str(error)
            refused += 1
            warmup = node(hf, "scheduler.params.warmup_num_steps") if isinstance(hf, dict) else None
            stops = isinstance(hf, str) or oracle.deepspeed(hf, run.world_size) != ""
            assert stops or (warmup and warmup > run.max_steps), error
            return
        assert isinstance(hf, dict), hf
        assert resolution.config == without_additions(hf, config)
        assert oracle.deepspeed(resolution.config, run.world_size) == ""
        assert config == before, "the user's configuration is not changed"
        equal += 1

    check()
    assert equal > EXAMPLES / 3
    assert refused > 10


def test_the_record_names_each_auto_once_and_who_fills_it(oracle: Oracle) -> None:
    """HF's part is checked by stopping before accelerate's: what HF has filled by then is HF's."""
    config = generate(ConfigRequest("hf", 2, scheduler="WarmupDecayLR"))
    config["zero_optimization"]["stage3_prefetch_bucket_size"] = "auto"
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = "auto"
    config["zero_optimization"]["allgather_bucket_size"] = "auto"
    autos = set(Document.of(config).autos())
    run = TrainingRun(2, bf16=True, max_steps=100)
    fills = resolve(config, run, Width(64, "a model")).fills
    assert sorted(fill.key for fill in fills) == sorted(autos)
    by = {fill.key.rpartition(".")[2]: fill.filler for fill in fills}
    assert by.pop("allgather_bucket_size") == "nobody: ds-config"
    assert by.pop("stage3_prefetch_bucket_size") == "accelerate"
    assert by.pop("stage3_gather_16bit_weights_on_model_save") == "accelerate"
    assert set(by.values()) == {"HF"}
    said = oracle.ask("hf", config=config, run=asdict(run), model={"hidden_size": 64}, total=100)
    assert "zero_optimization.allgather_bucket_size` not found in kwargs" in said


def test_accelerate_does_not_look_for_the_width_where_hf_does() -> None:
    """Below stage 3 two bucket sizes are accelerate's, which does not know text_config."""
    config = generate(ConfigRequest("hf", 2))
    config["zero_optimization"]["stage3_prefetch_bucket_size"] = "auto"
    fills = resolve(
        config, TrainingRun(2), width_of_config({"text_config": {"hidden_size": 64}}, "a model")
    ).fills
    by = {fill.key.rpartition(".")[2]: fill.filler for fill in fills}
    assert by["reduce_bucket_size"] == "HF"
    assert by["stage3_prefetch_bucket_size"] == "nobody: ds-config"


EVERYWHERE: dict[str, Any] = generate(
    ConfigRequest(
        "hf",
        3,
        scheduler="WarmupDecayLR",
        offload_optimizer="nvme",
        offload_param="nvme",
        nvme_path="/local_nvme",
    )
) | {
    "activation_checkpointing": {"partition_activations": False, "number_checkpoints": 2},
    "wall_clock_breakdown": False,
    "steps_per_print": 10,
    "pipeline": {"stages": "auto"},
    "data_types": {"grad_accum_dtype": "fp32"},
    "flops_profiler": {"enabled": False, "profile_step": 1},
    "checkpoint": {"tag_validation": "Warn"},
}
FILLED_BY_NOBODY = {
    "": ("wall_clock_breakdown", "steps_per_print"),
    "fp16": ("loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "min_loss_scale"),
    "zero_optimization": (
        "contiguous_gradients",
        "overlap_comm",
        "sub_group_size",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
    ),
    "zero_optimization.offload_optimizer": ("pin_memory",),
    "zero_optimization.offload_param": ("pin_memory",),
    "aio": ("block_size", "queue_depth", "overlap_events"),
    "activation_checkpointing": ("partition_activations", "number_checkpoints"),
    "pipeline": ("stages",),
    "data_types": ("grad_accum_dtype",),
    "flops_profiler": ("enabled", "profile_step"),
    "checkpoint": ("tag_validation",),
}
PATHS = [(above, name) for above, names in FILLED_BY_NOBODY.items() for name in names]


@settings(max_examples=60)
@given(chosen=st.sets(st.sampled_from(PATHS), min_size=1))
def test_what_nobody_fills_gets_a_value_and_is_marked(oracle: Oracle, chosen: set[tuple[str, str]]) -> None:
    config = copy.deepcopy(EVERYWHERE)
    config["pipeline"] = {"stages": 2}
    for above, name in chosen:
        node(config, above)[name] = "auto"
    resolution = resolve(config, TrainingRun(2, bf16=True, max_steps=9), Width(64, "a model"))
    marked = {fill.key for fill in resolution.fills if fill.filler.startswith("nobody")}
    assert marked == {f"{above}.{name}".lstrip(".") for above, name in chosen}
    assert '"auto"' not in json.dumps(resolution.config)
    assert oracle.deepspeed(resolution.config, 2) == ""


RUN_SIZES = st.builds(
    TrainingRun,
    world_size=st.integers(1, 9),
    per_device_train_batch_size=st.integers(1, 9),
    gradient_accumulation_steps=st.integers(1, 9),
    num_examples=st.integers(1, 5000),
    num_train_epochs=st.floats(0.01, 9),
    max_steps=st.sampled_from([-1, -1, -1, 7]),
    dataloader_drop_last=st.booleans(),
)


def test_steps_are_counted_as_the_trainer_counts_them(oracle: Oracle) -> None:
    @given(RUN_SIZES)
    def check(run: TrainingRun) -> None:
        try:
            steps = run.total_steps()
        except DsConfigError:
            batches = run.num_examples // run.per_device_train_batch_size  # type: ignore[operator]
            assert run.dataloader_drop_last and batches < run.world_size
            return
        assert steps == oracle.ask("steps", run=asdict(run))

    check()


def test_flags_have_training_arguments_names_and_defaults(oracle: Oracle) -> None:
    ours = asdict(TrainingRun(1))
    ours.pop("world_size")  # a property of theirs
    ours.pop("num_examples")  # the length of their data set
    assert oracle.ask("defaults", names=sorted(ours)) == ours


def test_width_of_every_family_is_found_where_hf_finds_it(oracle: Oracle) -> None:
    """Of transformers' 800 and more configurations; four compute their width from nothing in the file."""
    found, computed = 0, []
    for family, config, width in oracle.ask("widths"):
        if config is None:
            continue  # the class has no default
        try:
            ours: int | None = width_of_config(config, family).hidden
        except DsConfigError:
            ours = None
        if ours is None and width is not None:
            computed.append(family)
            continue
        assert ours == width, family
        found += width is not None
    assert found > 700
    assert sorted(computed) == [
        "gemma4_unified_audio",
        "higgs_audio_v2_tokenizer",
        "nemotron3_5_transcribe_audio",
        "xcodec",
    ]
