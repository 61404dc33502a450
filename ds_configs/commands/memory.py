"""``ds-config memory``: what a job needs on each NPU and host, and the cheapest way to make it fit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ds_configs.sizes import parse_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from ds_configs.memory import MemoryJob

MIB = 1 << 20
"""No card and no buffer is smaller: --hbm 64 lacks its unit."""
HELP = "estimate the memory of a training job, term by term"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", metavar="MODEL", help="directory, config.json or name (such as llama-3-8b)")
    model.add_argument("--params", metavar="SIZE", help="a GPT of so many parameters, such as 7.5B")
    parser.add_argument("--config", metavar="FILE", help="a ds_config.json; flags win over it")
    parser.add_argument("--world-size", type=int, metavar="N", help="ranks of the job (default: tp × pp)")
    parser.add_argument("--tp", type=int, metavar="N", help="tensor-parallel ranks")
    parser.add_argument("--pp", type=int, default=1, metavar="N", help="pipeline stages")
    parser.add_argument("--ep", type=int, default=1, metavar="N", help="expert-parallel ranks")
    parser.add_argument("--sequence-parallel", action="store_true", help="divide activations over tp too")
    parser.add_argument("--stage", type=int, metavar="0-3", help="ZeRO stage")
    parser.add_argument("--dtype", metavar="TYPE", help="bf16, fp16 or fp32 (default: the file's, else bf16)")
    parser.add_argument("--micro-batch", type=int, metavar="N", help="sequences of one forward pass")
    parser.add_argument("--accumulation", type=int, metavar="N", help="micro-batches of one step")
    parser.add_argument("--seq", type=int, default=None, metavar="N", help="tokens of a sequence")
    parser.add_argument("--recomputation", metavar="KIND", help="none, selective or full")
    parser.add_argument("--attention", metavar="KIND", help="flash or eager")
    parser.add_argument("--kernels", metavar="KIND", help="layers of transformers or of megatron")
    parser.add_argument("--schedule", metavar="NAME", help="1f1b, gpipe, interleaved, zb-h1, zb-v, dualpipev")
    parser.add_argument("--chunks", type=int, metavar="N", help="model chunks of a rank")
    parser.add_argument("--offload-optimizer", metavar="WHERE", help="none, cpu or nvme")
    parser.add_argument("--offload-param", metavar="WHERE", help="none, cpu or nvme")
    parser.add_argument("--hccl-buffer", metavar="SIZE", help="HCCL_BUFFSIZE, such as 200MiB")
    parser.add_argument("--hbm", metavar="SIZE", help="memory of one NPU, such as 64GiB: does it fit?")
    parser.add_argument("--plot", metavar="FILE.png", help="draw stacked bars")
    parser.add_argument("--format", choices=("table", "json"), default="table")


def run(args: argparse.Namespace) -> int:
    """Print the estimate; 1 if it does not fit --hbm."""
    from ds_configs.memory import estimate
    from ds_configs.memory.changes import cheapest_ways
    from ds_configs.memory.report import as_json, sentences, table

    job, notes = _job(args)
    result = estimate(job)
    capacity = None if args.hbm is None else parse_bytes(args.hbm, least=MIB)
    short = capacity is not None and not result.fits(capacity)
    ways = cheapest_ways(job, capacity) if short and capacity is not None else []
    if args.plot:
        from ds_configs.memory.plot import draw

        draw(job, args.plot, capacity)
    if args.format == "json":
        report = {**as_json(job, result, capacity, ways), "notes": notes}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_text(table(result), [*notes, *sentences(job, result, capacity, ways)])
    return 1 if short else 0


def _print_text(table: Table, lines: list[str]) -> None:
    """Print from rich's buffer: rich itself would end with status 1 where the reader, as `head`, has gone."""
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(table)
        for line in lines:
            console.print(line, soft_wrap=True, markup=False)
    print(captured.get(), end="")


def _job(args: argparse.Namespace) -> tuple[MemoryJob, list[str]]:
    """Return the job, and what was assumed because the configuration leaves it open."""
    from ds_configs.memory.settings import assumptions, job_of_settings, read_settings, tensor_parallel_size
    from ds_configs.models import find_or_size
    from ds_configs.parallel import ParallelConfig

    shape = find_or_size(args.model, args.params, args.seq)
    config: Mapping[str, Any] = {} if args.config is None else read_settings(args.config)
    tp = tensor_parallel_size(config) if args.tp is None else args.tp
    world = tp * args.pp if args.world_size is None else args.world_size
    parallel = ParallelConfig.of_world(world, tp, args.pp, args.ep, args.sequence_parallel)
    fields = (
        "stage", "dtype", "micro_batch", "accumulation", "recomputation", "attention", "kernels", "schedule",
        "chunks", "offload_optimizer", "offload_param",
    )  # fmt: skip
    flags = {field: getattr(args, field) for field in fields}
    flags["sequence"] = min(shape.max_positions, 4096) if args.seq is None else args.seq
    if args.hccl_buffer is not None:
        flags["hccl_buffer"] = parse_bytes(args.hccl_buffer, least=MIB)
    return job_of_settings(config, shape, parallel, **flags), assumptions(config, **flags)
