"""Random requests for configurations, possible and impossible ones, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ds_configs.generate.options import Option, recipes, section

PATH = "/local_nvme"


def option_values(option: Option) -> st.SearchStrategy[Any]:
    """Values that ``option`` may hold, and None, which leaves the key out."""
    low = option.minimum if option.minimum is not None else 0
    high = option.maximum if option.maximum is not None else 4096
    values = {
        "bool": st.booleans(),
        "int": st.integers(int(low), int(high)),
        "count": st.one_of(st.integers(int(low), 10**9), st.sampled_from([2e8, 1e9])),
        "float": st.floats(low, min(high, 1), exclude_min=True),
        "pair": st.lists(st.floats(0, 0.999), min_size=2, max_size=2),
        "str": st.sampled_from(option.choices or ("word",)),
    }[option.type]
    return st.one_of(st.none(), values)


@st.composite
def some_of(draw: st.DrawFn, options: dict[str, Option], most: int = 3) -> dict[str, Any]:
    """A few of ``options`` with values."""
    names = draw(st.lists(st.sampled_from(sorted(options)), max_size=most, unique=True))
    return {name: draw(option_values(options[name])) for name in names}


@st.composite
def batches(draw: st.DrawFn, replicas: int) -> dict[str, int]:
    """One, two or all three of the triple, multiplied out for ``replicas``."""
    micro, accumulation = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    whole = {
        "micro_batch": micro,
        "accumulation": accumulation,
        "train_batch": micro * accumulation * replicas,
    }
    given = draw(st.lists(st.sampled_from(sorted(whole)), min_size=1, unique=True))
    return {name: whole[name] for name in given}


@st.composite
def request_fields(draw: st.DrawFn, target: str) -> dict[str, Any]:
    """Fields of a ConfigRequest for ``target``; most are possible, some are not."""
    stage = draw(st.sampled_from([0, 1, 2, 3]))
    degrees = [(1, 1), (1, 1), (2, 1)] + ([(1, 2), (2, 2)] if stage < 2 and target == "deepspeed" else [])
    tp, pp = draw(st.sampled_from(degrees))
    tp_by = "mpu" if tp > 1 and target == "deepspeed" and (pp > 1 or draw(st.booleans())) else "autotp"
    replicas = draw(st.sampled_from([1, 2, 3, 8]))
    fields: dict[str, Any] = {
        "target": target,
        "stage": stage,
        "precision": draw(st.sampled_from(["auto", "fp32", "bf16", "fp16"])),
        "tp": tp,
        "pp": pp,
        "tp_by": tp_by,
        "world_size": draw(st.sampled_from([None, replicas * tp * pp])),
        "hidden": draw(st.sampled_from([64, 4096, 12288])),
        "clipping": draw(st.sampled_from(["auto", None, 0, 0.5])),
        "steps_per_print": draw(st.sampled_from([None, 10])),
    }
    if target == "deepspeed" or (tp == 1 and draw(st.booleans())):
        fields |= draw(batches(replicas))
    fields |= draw(offloads(stage)) | draw(recipes_with_params(target)) | draw(sections(fields, tp_by))
    if stage > 0:
        fields["grad_accum_dtype"] = draw(st.sampled_from([None, "fp32", "bf16"]))
    return fields


@st.composite
def offloads(draw: st.DrawFn, stage: int) -> dict[str, Any]:
    """Where optimizer state and parameters live, mostly where ``stage`` allows it."""
    fields: dict[str, Any] = {}
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        devices = ["none", "cpu"] if stage >= least else ["none"] * 9 + ["cpu"]
        device = fields[name] = draw(st.sampled_from(devices + (["nvme"] if stage == 3 else [])))
        options = {key: each for key, each in section(name).items() if each.device in ("", device)}
        fields[f"{name}_params"] = draw(some_of(options)) if device != "none" else {}
    if "nvme" in fields.values():
        fields |= {"nvme_path": PATH, "aio": draw(some_of(section("aio")))}
    return fields


@st.composite
def recipes_with_params(draw: st.DrawFn, target: str) -> dict[str, Any]:
    """An optimizer and a scheduler, or neither, with some of their parameters."""
    fields: dict[str, Any] = {}
    usual = {"optimizer": [None, "AdamW", "AdamW"], "scheduler": [None, None, None]}
    for kind, often in usual.items():
        name = fields[kind] = draw(st.sampled_from(often + list(recipes(f"{kind}s"))))
        if name is None:
            continue
        options = recipes(f"{kind}s")[name].params
        given = draw(some_of(options))
        for key, each in options.items():
            if each.needed and (target == "deepspeed" or not each.hf):
                given[key] = {"total_num_steps": 9000}.get(key, 2)
        fields[f"{kind}_params"] = given
    return fields


@st.composite
def own_pipelines(draw: st.DrawFn) -> dict[str, Any]:
    """A block for npu_plugins' engine."""
    found = draw(some_of(section("own_pipeline"))) | {"partition": "uniform"}
    if found.get("schedule") != "interleaved":
        found.pop("virtual_stages", None)
    return found


@st.composite
def sections(draw: st.DrawFn, fields: dict[str, Any], tp_by: str) -> dict[str, Any]:
    """A few keys of the sections that the other fields have a use for."""
    result: dict[str, Any] = {}
    stage, precision = fields["stage"], fields["precision"]
    zero = {key: option for key, option in section("zero_optimization").items() if stage in option.stages}
    if zero:
        result["zero"] = draw(some_of(zero))
    if precision in ("fp16", "bf16"):
        result[precision] = draw(some_of(section(precision)))
    if fields["pp"] > 1:
        result["pipeline"] = draw(st.one_of(some_of(section("pipeline")), own_pipelines()))
    if fields["tp"] > 1 and tp_by == "autotp":
        result["tensor_parallel"] = draw(some_of(section("tensor_parallel")))
    if fields["target"] == "deepspeed" and draw(st.booleans()):
        result["activation_checkpointing"] = draw(some_of(section("activation_checkpointing"), most=2))
    return result
