"""The pipeline block: DeepSpeed's engine and npu_plugins' read different keys of it, a plain model none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ds_configs.documents import rename_key
from ds_configs.lint.context import Context
from ds_configs.lint.finding import Finding
from ds_configs.lint.rules.conflicts import ZERO
from ds_configs.pipeline_section import KEYS, faults, meant

PIPELINE_READS = ("activation_checkpoint_interval", "pipe_partitioned", "grad_partitioned")


def check(context: Context) -> Iterator[Finding]:
    """Yield who reads the block, and what its reader refuses."""
    block = context.get(("pipeline",))
    if not isinstance(block, dict):
        return
    own = context.own_pipeline
    yield _no_pipeline(context, own)
    if context.stage_known and context.stage >= 2:
        reason = f"a PipelineModule refuses ZeRO stage {context.stage}"
        yield context.finding("DSC609", (ZERO, "stage"), reason, "use stage 1 with a pipeline", on_value=True)
    if own:
        yield from _refused(context, block)


def _no_pipeline(context: Context, own: bool) -> Finding:
    if own:
        reason = "the pipeline block makes no pipeline: npu_plugins' PipelineModule or split_model does"
        mend = "build the model with one of them, and give it this file as config; or delete the block"
    else:
        reason = (
            "the pipeline block makes no pipeline: a PipelineModule does, and DeepSpeed's reads "
            f"{', '.join(PIPELINE_READS)} alone"
        )
        mend = (
            "build the model as a PipelineModule: npu_plugins.pipeline.module's reads its stages here, "
            "DeepSpeed's is given them in the call; or delete the block"
        )
    return context.finding("DSC404", ("pipeline",), reason, mend)


def _refused(context: Context, block: dict[str, Any]) -> Iterator[Finding]:
    for key, fault in faults(block).items():
        path = ("pipeline", key)
        member, near = context.member(path), "" if key in KEYS else meant(key)
        renamed = rename_key(member, near) if member is not None and near and near not in block else ()
        yield context.finding("DSC615", path, fault.reason, fault.mend, edits=renamed, safe=False)
