"""What HF's Trainer and accelerate refuse, or take otherwise than DeepSpeed alone."""

from __future__ import annotations

from collections.abc import Iterator

from ds_configs.documents import Edit, insert_member, replace_value
from ds_configs.lint.context import AUTO, Context
from ds_configs.lint.finding import HF, Finding
from ds_configs.lint.rules.batch import MICRO, STEPS, TRAIN
from ds_configs.lint.rules.conflicts import ZERO
from ds_configs.lint.rules.filled import autos, compared, containers, filled
from ds_configs.schema.key import shown

ONLY = (HF,)


def check(context: Context) -> Iterator[Finding]:
    """Yield what concerns HF alone."""
    if context.member((ZERO,)) is None:
        edits = insert_member(context.document.text, context.root, ZERO, {"stage": 0})
        mend = 'add "zero_optimization": {"stage": 0}, which changes nothing else'
        yield context.finding(
            "DSC702", (), "there is no zero_optimization block", mend, loaders=ONLY, edits=edits
        )
    for path in containers():
        member = context.member(path)
        if member is not None and member.node.kind not in ("object", "null"):
            reason = f"HF looks for keys in {'.'.join(path)}"
            yield context.finding("DSC706", path, reason, "make it an object", on_value=True, loaders=ONLY)
    yield from _autos(context)
    yield from _accumulation(context)
    yield from _fixed(context)
    yield from _contradictions(context)
    yield from _gathering(context)


def _autos(context: Context) -> Iterator[Finding]:
    for path in autos(context.value):
        if path in filled():
            continue
        key = context.schema.key(path)
        default = (
            "" if key is None or key.default is None else f", or write {shown(key.default)}, its default"
        )
        reason = f'"auto" for {".".join(path)} is filled by nobody'
        mend = f"delete the key{default}"
        yield context.finding(
            "DSC703", path, reason, mend, on_value=True, loaders=ONLY, edits=context.delete(path)
        )


def _accumulation(context: Context) -> Iterator[Finding]:
    if context.member(STEPS) is None and (context.member(MICRO) or context.member(TRAIN)):
        if isinstance(context.get(TRAIN), int) and isinstance(context.get(MICRO), int):
            return  # rules/batch.py computes what comes of it
        edits: tuple[Edit, ...] = ()
        mend = "add gradient_accumulation_steps, with the flag's number"
        if context.takes_auto:
            edits = insert_member(context.document.text, context.root, STEPS[0], AUTO)
            mend = 'add "gradient_accumulation_steps": "auto"'
        reason = "gradient_accumulation_steps is left out"
        yield context.finding("DSC704", (), reason, mend, loaders=ONLY, edits=edits)


def _fixed(context: Context) -> Iterator[Finding]:
    for path, flag in compared().items():
        member = context.member(path)
        if member is None or member.node.value in (AUTO, None):
            continue
        if path[-1] == "enabled" and member.node.value is False:
            continue  # HF's own default
        reason = f"{'.'.join(path)} is fixed at {shown(member.node.value)}; HF compares it with {flag}"
        edits = replace_value(member.node, AUTO) if context.takes_auto else ()
        mend = "give the flag the same value"
        yield context.finding(
            "DSC701",
            path,
            reason,
            f'{mend}, or write "auto"' if context.takes_auto else mend,
            on_value=True,
            loaders=ONLY,
            edits=edits,
            safe=False,
        )


def _contradictions(context: Context) -> Iterator[Finding]:
    """Find values that no flag agrees with, since it would have to agree with another value too."""
    first: dict[str, tuple[str, ...]] = {}
    for path, flag in compared().items():
        value = context.get(path)
        if value is None or value == AUTO:
            continue
        other = first.setdefault(flag, path)
        if context.get(other) == value:
            continue
        names = f"{'.'.join(other)} is {shown(context.get(other))}, {'.'.join(path)} is {shown(value)}"
        reason = f"{names}; HF compares both with {flag}"
        mend = 'write "auto" for both' if context.takes_auto else "give both the same value"
        yield context.finding("DSC707", path, reason, mend, on_value=True, loaders=ONLY)


def _gathering(context: Context) -> Iterator[Finding]:
    names = (
        "stage3_gather_16bit_weights_on_model_save",
        "gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
    )
    if context.stage == 3 and not any(context.get((ZERO, name)) for name in names):
        node = context.object_at((ZERO,))
        written = any(context.member((ZERO, name)) for name in names)
        edits = () if node is None or written else insert_member(context.document.text, node, names[0], True)
        reason = f"{names[0]} is not true"
        yield context.finding(
            "DSC705", (ZERO, "stage"), reason, f"write {names[0]}: true", loaders=ONLY, edits=edits
        )
