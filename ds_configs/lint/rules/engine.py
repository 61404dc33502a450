"""What DeepSpeedConfig lets through and deepspeed.initialize refuses: optimizers, schedulers, data types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path as File
from typing import Any

from ds_configs.documents import Edit, insert_member, rename_key, replace_value
from ds_configs.lint.context import AUTO, Context, Path, is_finite
from ds_configs.lint.finding import Finding
from ds_configs.lint.rules.conflicts import half
from ds_configs.schema import Key
from ds_configs.schema.document import PICKED
from ds_configs.schema.key import spelt

TABLE = File(__file__).parent.parent / "engine.json"


@cache
def _table() -> Mapping[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


def check(context: Context) -> Iterator[Finding]:
    """Yield what stops deepspeed.initialize."""
    yield from _optimizer(context)
    yield from _scheduler(context)
    for block in ("optimizer", "scheduler"):
        yield from _parameters(context, block)
    yield from _ranges(context)
    path = ("zero_optimization", "legacy_stage1")
    if context.stage and context.flag(path):
        reason = "legacy_stage1 is refused since DeepSpeed 0.5.9"
        yield context.finding("DSC611", path, reason, "delete the key", edits=context.delete(path))
    yield from _muon(context)
    yield from _dtypes(context)


def _optimizer(context: Context) -> Iterator[Finding]:
    kind = context.get(("optimizer", "type"))
    if not isinstance(kind, str):
        return
    table = _table()["optimizers"]
    if not _is_deepspeeds(context, kind.lower()) and kind not in table["torch"]:
        yield _unknown(context, "optimizer", kind, [*table["spelt"], *table["torch"]])
    elif (
        context.stage
        and kind.lower() not in table["zero"]
        and not context.flag(("zero_allow_untested_optimizer",))
    ):
        reason = f"ZeRO takes {kind} only with zero_allow_untested_optimizer"
        mend = 'add "zero_allow_untested_optimizer": true, or take AdamW'
        edits = context.put(("zero_allow_untested_optimizer",), True)
        yield context.finding(
            "DSC602", ("optimizer", "type"), reason, mend, on_value=True, edits=edits, safe=False
        )
    params = context.block(("optimizer", "params"))
    if "max_grad_norm" in params:
        edits = context.delete(("optimizer", "params", "max_grad_norm"))
        if context.member(("gradient_clipping",)) is None:
            added = insert_member(
                context.document.text, context.root, "gradient_clipping", params["max_grad_norm"]
            )
            edits = (*edits, *added)
        reason = "max_grad_norm is no parameter of an optimizer"
        mend = "move it to the top level as gradient_clipping"
        yield context.finding("DSC603", ("optimizer", "params", "max_grad_norm"), reason, mend, edits=edits)
    scale = context.number(("fp16", "loss_scale"), 0)
    if kind.lower() == "lamb" and scale:
        reason = f"Lamb needs a dynamic loss scale, but fp16.loss_scale is {scale:g}"
        yield context.finding("DSC608", ("fp16", "loss_scale"), reason, "write 0", on_value=True)


def _muon(context: Context) -> Iterator[Finding]:
    """Stage 3 orthogonalizes whole gradients (runtime/zero/stage3.py), so they must not be scattered."""
    kind = context.get(("optimizer", "type"))
    path: Path = ("zero_optimization", "reduce_scatter")
    if not isinstance(kind, str) or kind.lower() != "muon" or not context.since("0.19"):
        return
    if context.stage == 3 and context.flag(path, True):
        edits = context.put(path, False)
        reason = "Muon at stage 3 refuses reduce_scatter, which is true unless it is set to false"
        yield context.finding("DSC611", path, reason, 'write "reduce_scatter": false', edits=edits)


def _is_deepspeeds(context: Context, kind: str) -> bool:
    """Whether this DeepSpeed version builds the optimizer itself."""
    table = _table()["optimizers"]
    since, until = table["since"].get(kind), table["until"].get(kind)
    there = (since is None or context.since(since)) and (until is None or not context.since(until))
    return kind in table["deepspeed"] and there


def _unknown(context: Context, block: str, kind: str, known: list[str]) -> Finding:
    code = "DSC601" if block == "optimizer" else "DSC606"
    gone = _table()["gone"].get(kind.lower())
    spelt = {name.lower(): name for name in known}
    near = [spelt[word] for word in get_close_matches(kind.lower(), spelt, n=1, cutoff=0.8)]
    member = context.member((block, "type"))
    edits: tuple[Edit, ...] = ()
    mend = f"take one of {', '.join(known[:8])}"
    if near and member is not None:
        mend, edits = f"write {near[0]}", replace_value(member.node, near[0])
    reason = f"DeepSpeed {context.schema.version} has no {block} {kind!r}" + (f": {gone}" if gone else "")
    # One slip of the pen is sure; another name for another method is not.
    return context.finding(
        code,
        (block, "type"),
        reason,
        mend,
        on_value=True,
        edits=() if gone else edits,
        safe=_slip(kind, near),
    )


def _slip(kind: str, near: list[str]) -> bool:
    return bool(near) and near[0].lower() == kind.lower()


def _scheduler(context: Context) -> Iterator[Finding]:
    kind = context.get(("scheduler", "type"))
    if not isinstance(kind, str):
        return
    table = _table()["schedulers"]
    if kind not in table["deepspeed"] and kind not in table["torch"]:
        yield _unknown(context, "scheduler", kind, [*table["deepspeed"], *table["torch"]])
    if not isinstance(context.get(("scheduler", "params")), dict):
        node = context.object_at(("scheduler",))
        written = context.member(("scheduler", "params")) is not None
        edits = () if node is None or written else insert_member(context.document.text, node, "params", {})
        reason = "scheduler has no params, and DeepSpeed unpacks them unasked"
        yield context.finding("DSC605", ("scheduler", "type"), reason, 'add "params": {}', edits=edits)
    yield from _torch_needs(context, kind)
    path = ("scheduler", "params", "warmup_num_steps")
    steps = context.get(path)
    if kind in table["warmup"] and is_finite(steps) and (not isinstance(steps, int) or steps <= 0):
        whole: Any = int(steps) if steps > 0 and float(steps).is_integer() else None
        member = context.member(path)
        edits = replace_value(member.node, whole) if member and whole else ()
        reason = f"warmup_num_steps is {steps!r}"
        if member and context.takes_auto:  # HF compares it with at least 1, so it never matches
            whole, edits = AUTO, replace_value(member.node, AUTO)
        yield context.finding(
            "DSC607", path, reason, f"write {whole or 'a whole number above 0'}", on_value=True, edits=edits
        )


def _torch_needs(context: Context, kind: str) -> Iterator[Finding]:
    """Yield what torch's scheduler ``kind`` cannot be built without."""
    given = context.block(("scheduler", "params"))
    for name in _table()["needs"].get(kind, ()):
        if name not in given:
            mend = f"add {name} to scheduler.params"
            if name in _table()["objects"]:
                mend = "take another scheduler, or build this one in the program: no file can hold that"
            yield context.finding("DSC605", ("scheduler", "params"), f"torch's {kind} needs {name}", mend)


def _parameters(context: Context, block: str) -> Iterator[Finding]:
    """Compare the parameters with those that the schema lists for the type; say nothing where it has none."""
    kind = context.get((block, "type"))
    listed = context.schema.variants.get((block, "params"), {})
    named = {name.lower(): keys for name, keys in listed.items()}
    if not isinstance(kind, str) or kind.lower() not in named:
        return
    known = {**context.schema.children((block, "params"), kind), **named[kind.lower()]}
    known = {name: key for name, key in known.items() if not key.removed}
    given = context.block((block, "params"))
    for name in given:
        if name not in known and name != "max_grad_norm":
            yield _unknown_parameter(context, (block, "params", name), kind, known)
    for name, key in known.items():
        if key.required and name not in given:
            reason = f"{kind} needs {name}"
            yield context.finding("DSC605", (block, "params"), reason, f"add {name} to {block}.params")


def _unknown_parameter(context: Context, path: Path, kind: str, known: Mapping[str, Key]) -> Finding:
    """Say what becomes of a parameter that ``kind`` does not have, and which one is meant."""
    name = path[-1]
    word = _table()["words"].get(name)
    near = [word] if word in known else get_close_matches(name, known, n=1, cutoff=0.85)
    code = "DSC604"
    if kind.lower() in PICKED:
        code = "DSC401" if near else "DSC403"
    reason = f"{kind} has no parameter {spelt(name)}"
    member = context.member(path)
    if not near or member is None:
        mend = f"delete it; {kind} has {', '.join(sorted(known))}"
        # What the writer wanted of it is lost with it.
        return context.finding(code, path, reason, mend, edits=context.delete(path), safe=False)
    free = context.member((*path[:-1], near[0])) is None
    edits = rename_key(member, near[0]) if free else context.delete(path)
    mend = f"write {near[0]}" if free else f"delete it: {near[0]} is given too"
    return context.finding(code, path, reason, mend, edits=edits, safe=free)


def _ranges(context: Context) -> Iterator[Finding]:
    """Compare the optimizer's numbers with what Adam and its like can compute with."""
    path = ("optimizer", "params", "betas")
    betas = context.get(path)
    pair = isinstance(betas, list) and len(betas) == 2 and all(_is_share(beta) for beta in betas)
    if betas not in (None, AUTO) and not pair:
        reason = f"betas is {json.dumps(betas)}, not two numbers from 0 to below 1"
        yield context.finding("DSC614", path, reason, "write [0.9, 0.999] or such", on_value=True)
    elif (
        pair
        and context.flag(("optimizer", "params", "torch_adam"))
        and not all(isinstance(beta, float) for beta in betas)
    ):
        reason = f"betas is {json.dumps(betas)}, and torch's Adam takes two fractions or none"
        member, fractions = context.member(path), [float(beta) for beta in betas]
        edits = replace_value(member.node, fractions) if member else ()
        mend = f"write {json.dumps(fractions)}"
        yield context.finding("DSC614", path, reason, mend, on_value=True, edits=edits)
    params = context.block(("optimizer", "params"))
    nesterov: Path = ("optimizer", "params", "nesterov")
    fits = params.get("momentum") and not params.get("dampening")
    if context.get(("optimizer", "type")) == "SGD" and context.flag(nesterov) and not fits:
        reason = "nesterov needs a momentum above 0 and no dampening"
        yield context.finding("DSC614", nesterov, reason, "add momentum, such as 0.9", on_value=True)
    for name in ("lr", "eps", "weight_decay"):
        value = context.get(("optimizer", "params", name))
        if isinstance(value, int | float) and (value < 0 or not is_finite(value)):
            reason = f"{name} is {value}, which is below 0 or not finite"
            mend = "write a number of 0 or more"
            yield context.finding("DSC614", ("optimizer", "params", name), reason, mend, on_value=True)


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _dtypes(context: Context) -> Iterator[Finding]:
    model = "fp16" if half(context, "fp16") else "bf16" if half(context, "bf16") else "fp32"
    if AUTO in (context.get(("fp16", "enabled")), context.get(("bf16", "enabled"))):
        return
    names = _table()["dtypes"]
    for key, code in (("param_dtype", "DSC504"), ("grad_accum_dtype", "DSC505")):
        value = context.get(("data_types", key))
        if isinstance(value, str) and value not in names:
            reason = f"data_types.{key} is {json.dumps(value)}, which is no type"
            yield context.finding(
                "DSC213", ("data_types", key), reason, "write fp32, fp16 or bf16", on_value=True
            )
            continue
        if not isinstance(value, str) or names[value] == model:
            continue
        if key == "grad_accum_dtype" and context.stage:
            continue
        reason = f"data_types.{key} is {value}, but the model is {model}"
        yield context.finding(
            code,
            ("data_types", key),
            reason,
            f"write {model} or delete it",
            on_value=True,
            edits=context.delete(("data_types", key)),
            safe=False,
        )
