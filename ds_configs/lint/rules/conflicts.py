"""Settings that exclude each other, as DeepSpeed's own validators and checks have it."""

from __future__ import annotations

from collections.abc import Iterator

from ds_configs.documents import replace_value
from ds_configs.lint.context import Context, Path
from ds_configs.lint.finding import Finding

ZERO = "zero_optimization"
# Need a sharded optimizer: DeepSpeedConfig._do_error_check.
SHARDED_ONLY: tuple[Path, ...] = (
    ("fp16", "fp16_master_weights_and_grads"),
    ("bf16", "bf16_master_weights_and_grads"),
    ("bf16", "bf16_optimizer_states"),
)


def check(context: Context) -> Iterator[Finding]:
    """Yield each conflict."""
    yield from _precision(context)
    yield from _loss_scale(context)
    yield from _stages(context)
    yield from _sum(context)
    yield from _data_efficiency(context)


def half(context: Context, name: str) -> bool:
    """Whether fp16 or bf16 is enabled; bf16 may be called bfloat16, which counts if bf16 is not there."""
    if name == "bf16" and context.get(("bf16",)) is None:
        return context.flag(("bfloat16", "enabled"))
    return context.flag((name, "enabled"))


def _precision(context: Context) -> Iterator[Finding]:
    if half(context, "fp16") and half(context, "bf16"):
        yield context.finding(
            "DSC501",
            ("fp16", "enabled"),
            "fp16 and bf16 are both enabled",
            "enable one; on an NPU bf16",
            on_value=True,
        )


def _loss_scale(context: Context) -> Iterator[Finding]:
    """fp16's dynamic scale needs a window and a floor above zero."""
    if (
        not context.since("0.19")
        or not half(context, "fp16")
        or context.number(("fp16", "loss_scale"), 0) != 0
    ):
        return
    for name, default in (("loss_scale_window", 1000), ("min_loss_scale", 1)):
        value = context.number(("fp16", name), default)
        if value is not None and value <= 0:
            member = context.member(("fp16", name))
            edits = replace_value(member.node, default) if member else ()
            reason = f"fp16.{name} is {value:g}, but dynamic loss scaling (loss_scale 0) needs more than 0"
            yield context.finding(
                "DSC215", ("fp16", name), reason, f"write {default}", on_value=True, edits=edits, safe=False
            )


def _stages(context: Context) -> Iterator[Finding]:
    stage = context.stage
    if not context.flag((ZERO, "compute_grad_norm"), True) and stage not in (1, 2):
        reason = f"compute_grad_norm can be false at stages 1 and 2 only, not at {stage}"
        yield _conflict(context, (ZERO, "compute_grad_norm"), reason, "delete it", delete=True)
    ratio = context.number((ZERO, "offload_optimizer", "ratio"), 1.0)
    if ratio is not None and ratio < 1 and stage != 3:
        reason = f"offload_optimizer.ratio is {ratio:g} at stage {stage}; only stage 3 offloads a part"
        yield _conflict(
            context, (ZERO, "offload_optimizer", "ratio"), reason, "delete it or use stage 3", delete=True
        )
    allowed = (1, 2, 3) if context.since("0.18") else (2,)
    for path in SHARDED_ONLY:
        if context.flag(path) and stage not in allowed:
            yield _conflict(
                context,
                path,
                f"{'.'.join(path)} needs ZeRO stage {' or '.join(map(str, allowed))}",
                "delete it or shard",
                delete=True,
            )
    alias = ("bfloat16", "bf16_master_weights_and_grads")
    base = "bf16" if context.get(("bf16",)) is not None else "bfloat16"
    if base == "bfloat16" and stage == 0 and context.flag(alias):
        yield _conflict(
            context, alias, f"{'.'.join(alias)} needs ZeRO stage 1, 2 or 3", "delete it or shard", delete=True
        )
    states = (base, "bf16_optimizer_states")
    if context.flag(states) and not context.flag((base, "bf16_master_weights_and_grads")):
        reason = "bf16_optimizer_states needs bf16_master_weights_and_grads"
        yield _conflict(context, states, reason, "enable both or neither", delete=True)


def _sum(context: Context) -> Iterator[Finding]:
    operation = context.get(("gradient_allreduce_op",))
    if not isinstance(operation, str) or operation.lower() != "sum":
        return
    against = {
        "ZeRO stage 3": context.stage == 3,
        "zenflow": isinstance(context.get((ZERO, "zenflow")), dict),
        "deepcompile": context.flag(("compile", "deepcompile")),
    }
    if context.schema.key(("gradient_allreduce_op",)) is None:
        return
    for name in [name for name, present in against.items() if present]:
        yield _conflict(
            context,
            ("gradient_allreduce_op",),
            f'gradient_allreduce_op "sum" does not work with {name}',
            'write "mean"',
        )


def _data_efficiency(context: Context) -> Iterator[Finding]:
    """What DeepSpeed's data pipeline asserts about its blocks."""
    sampling: Path = ("data_efficiency", "data_sampling")
    learning = context.block((*sampling, "curriculum_learning"))
    if learning.get("enabled") and "curriculum_metrics" not in learning:
        reason = "curriculum learning is enabled without curriculum_metrics"
        yield _conflict(
            context, (*sampling, "curriculum_learning"), reason, "add curriculum_metrics or disable it"
        )
    batching = context.block((*sampling, "dynamic_batching"))
    if batching.get("enabled") and "max_tokens" not in batching:
        reason = "dynamic batching is enabled without max_tokens"
        yield _conflict(context, (*sampling, "dynamic_batching"), reason, "add max_tokens or disable it")


def _conflict(context: Context, path: Path, reason: str, mend: str, delete: bool = False) -> Finding:
    edits = context.delete(path) if delete else ()
    return context.finding("DSC215", path, reason, mend, on_value=True, edits=edits, safe=False)
