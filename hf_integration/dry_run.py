"""What a run would do, told before it starts: mesh, layers of each rank, memory, configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel

from ds_configs.errors import DsConfigError
from ds_configs.memory import MemoryEstimate, estimate
from ds_configs.memory.report import table
from ds_configs.memory.settings import job_of_settings
from ds_configs.models.hf_config import shape_of_config
from hf_integration.engines import engine_config
from hf_integration.errors import TrainingInputError
from hf_integration.npu_arguments import NpuTrainingArguments, read_deepspeed_config
from npu_plugins.comm.topology import Topology
from npu_plugins.errors import NpuPluginsError
from npu_plugins.pipeline.config import PipelineConfig
from npu_plugins.pipeline.hf.plan import planned_layers
from npu_plugins.pipeline.schedules.registry import build_schedule, chunks_of

MIB = 1 << 20
WIDTH = 100


def dry_run(args: NpuTrainingArguments, model: PreTrainedModel, sequence: int) -> str:
    """Return the report.

    Args:
        args: of the run.
        model: on the meta device.
        sequence: tokens of a row.

    Raises:
        TrainingInputError: the run would be refused.
    """
    config = resolved_config(args, model)
    degrees = args.parallel_config
    try:
        settings = PipelineConfig.from_ds_config(config)
        layers: Sequence[Mapping[int, Sequence[str]]] = [{0: ["the whole model"]}]
        if degrees.pp > 1:
            layers = planned_layers(model, degrees.pp, settings)
            micro_batches = args.gradient_accumulation_steps
            build_schedule(settings.schedule, degrees.pp, micro_batches, settings.virtual_stages)
    except NpuPluginsError as error:
        raise TrainingInputError(f"this run would be refused: {error}") from error
    memory: MemoryEstimate | None = None
    try:
        memory = estimate_memory(args, model, sequence, config, settings)
        told = memory_text(memory)
    except DsConfigError as error:  # the memory model knows fewer models and cuts than can be trained
        told = f"memory        not estimated: {error}"
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
    lines = [
        f"mesh          tp {degrees.tp} × pp {degrees.pp} × dp {degrees.dp} = {degrees.world_size} ranks",
        f"batch         {args.per_device_train_batch_size} rows × {args.gradient_accumulation_steps} "
        f"micro-batches × {degrees.dp} replicas = {batch * degrees.dp} rows of {sequence} tokens a step",
    ]
    if degrees.pp > 1:
        lines.append(f"schedule      {settings.schedule}, recomputation {settings.recomputation}")
    lines += ["", *rank_lines(args, layers, memory), "", told, "configuration"]
    text = json.dumps(config, indent=2, default=str) if config else "none: without DeepSpeed"
    return "\n".join([*lines, text])


def resolved_config(args: NpuTrainingArguments, model: PreTrainedModel) -> dict[str, Any]:
    """Return the DeepSpeed configuration with every "auto" filled; empty without DeepSpeed."""
    given: Mapping[str, Any] | None = args.parallel.config
    if given is None and args.deepspeed:
        given = read_deepspeed_config(args.deepspeed)
    return {} if given is None else engine_config(args, model.config, args.max_steps, given)


def estimate_memory(
    args: NpuTrainingArguments,
    model: PreTrainedModel,
    sequence: int,
    config: Mapping[str, Any],
    settings: PipelineConfig,
) -> MemoryEstimate:
    """Return the memory of each pipeline stage's rank by the model of `ds-config memory`."""
    pipelined = args.parallel_config.pp > 1
    recomputed = settings.recomputed_layers > 0 if pipelined else bool(args.gradient_checkpointing)
    chunks = chunks_of(settings.schedule, settings.virtual_stages)
    job = job_of_settings(
        config,
        shape_of_config(model.config.to_dict(), type(model).__name__),
        args.parallel_config,
        dtype="bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        micro_batch=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        sequence=sequence,
        recomputation="full" if recomputed else "none",
        schedule=settings.schedule.replace("dualpipe-v", "dualpipev") if pipelined else None,
        chunks=chunks if settings.schedule == "interleaved" else None,
    )
    return estimate(job)


def rank_lines(
    args: NpuTrainingArguments, layers: Sequence[Mapping[int, Sequence[str]]], memory: MemoryEstimate | None
) -> list[str]:
    """Return a table with a line for each rank: its place, its memory and its layers."""
    topology = Topology(args.parallel_config)
    lines = [
        "MiB of each rank: of tensors, which the log has as memory_mib_rank0 and so on, and of the device",
        f"{'rank':>5} {'tp':>3} {'dp':>3} {'pp':>3} {'tensors':>9} {'device':>9}  layers, by stage",
    ]
    for rank in range(args.parallel_config.world_size):
        place = topology.coordinate(rank)
        held = "; ".join(f"{stage}: {shortened(names)}" for stage, names in layers[place.pp].items())
        stage = None if memory is None else memory.stages[place.pp]
        sizes = (
            ["-"] * 2 if stage is None else [f"{each / MIB:.0f}" for each in (stage.allocated, stage.total)]
        )
        lines.append(
            f"{rank:>5} {place.tp:>3} {place.dp:>3} {place.pp:>3} {sizes[0]:>9} {sizes[1]:>9}  {held}"
        )
    return lines


def shortened(names: Sequence[str]) -> str:
    """Return names as text, consecutive numbers of one kind as a range."""
    groups: list[tuple[str, list[int]]] = []
    for name in names:
        stem, _, number = name.rpartition(".")
        if not number.isdigit():
            groups.append((name, []))
        elif groups and groups[-1][0] == stem and groups[-1][1]:
            groups[-1][1].append(int(number))
        else:
            groups.append((stem, [int(number)]))
    return ", ".join(
        stem if not found else f"{stem}.{found[0]}" + (f"–{found[-1]}" if len(found) > 1 else "")
        for stem, found in groups
    )


def memory_text(memory: MemoryEstimate) -> str:
    """Return the estimate as a table of terms."""
    console = Console(width=WIDTH, no_color=True)
    with console.capture() as captured:
        console.print(table(memory))
    return captured.get()
