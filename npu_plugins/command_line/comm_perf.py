"""`npu-plugins comm-perf`: how fast collectives are, with nccl-tests' flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LEAVE_OUT = "leave it out"
# nccl-tests' flags that have no meaning here: names, the value that asks for nothing, why, the mend
_NOT_HERE = (
    (("-t", "--nthreads"), "1", "each rank is a process with one device", "start more ranks with -g"),
    (("-m", "--agg_iters"), "1", "torch has no such grouping for all collectives", _LEAVE_OUT),
    (("-N", "--run_cycles"), "1", "one command is one cycle", "run it again"),
    (("-I", "--per_iter_timing"), "0", "only means are told", _LEAVE_OUT),
    (
        ("-K", "--per_iter_skip"),
        "0",
        "only means are told",
        "keep the first iterations out with -w",
    ),
    (("-p", "--parallel_init"), "0", "ranks are processes, which start side by side", _LEAVE_OUT),
    (("-z", "--blocking"), "0", "collectives follow each other on the device", _LEAVE_OUT),
    (("-G", "--cudagraph"), "0", "collectives are not captured into graphs", _LEAVE_OUT),
    (("-R", "--local_register"), "0", "torch.distributed registers no buffers", _LEAVE_OUT),
    (("-D", "--device_implementation"), "0", "only the backend's own collectives are measured", _LEAVE_OUT),
    (("-V", "--device_cta_count"), "16", "only the backend's own collectives are measured", _LEAVE_OUT),
    (("-S", "--report_timestamps"), "0", "rows have no time of day", _LEAVE_OUT),
    (("-M", "--memory"), "0", "memory is not measured", _LEAVE_OUT),
    (("-u", "--unalign"), "0", "buffers begin where the allocator lets them", _LEAVE_OUT),
)


class _NotHere(argparse.Action):
    """Accepts the value that asks for nothing and refuses any other, with the reason."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from npu_plugins.diagnostics.errors import DiagnosticsError

        names, nothing, why, mend = next(each for each in _NOT_HERE if option_string in each[0])
        if values != nothing:
            raise DiagnosticsError(f"{'/'.join(names)} {values} is not done here: {why}; {mend}")


def add(commands: argparse._SubParsersAction) -> None:
    """Add the family to the parser."""
    parser = commands.add_parser(
        "comm-perf",
        help="time and check collectives: nccl-tests' flags, any backend, each mesh axis",
        description="Times and checks collectives as nccl-tests do, over hccl, gloo or nccl. It starts its "
        "own ranks (-g), or runs in those of torchrun. Status 1: an element was wrong, or it cannot be done.",
    )
    parser.set_defaults(run=_run)
    _add_ranks(parser)
    _add_measurement(parser)
    _add_output(parser)
    for names, nothing, *_ in _NOT_HERE:
        parser.add_argument(*names, action=_NotHere, metavar=nothing, help=argparse.SUPPRESS)


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    ranks = parser.add_argument_group("ranks")
    ranks.add_argument(
        "-g", "--ngpus", type=int, metavar="N", help="ranks to start here (all devices; on the CPU 2)"
    )
    ranks.add_argument("--backend", metavar="NAME", help="hccl, gloo, nccl... (that of the devices here)")
    ranks.add_argument(
        "--tp", type=int, default=1, metavar="N", help="measure along mesh axes: tp of so many ranks"
    )
    ranks.add_argument("--pp", type=int, default=1, metavar="N", help="and pp of so many; the rest is dp")
    ranks.add_argument("--axis", metavar="AXES", help="only along these, such as tp,dp (all longer than 1)")
    ranks.add_argument("-T", "--timeout", type=float, metavar="SECONDS", help="longest wait of a collective")


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is measured")
    what.add_argument("--op", metavar="NAMES", help="collectives with commas, or all (all_reduce)")
    what.add_argument("-b", "--minbytes", default="32M", metavar="SIZE", help="smallest size (32M)")
    what.add_argument("-e", "--maxbytes", default="32M", metavar="SIZE", help="largest size (32M)")
    what.add_argument("-i", "--stepbytes", metavar="SIZE", help="from one size to the next (1M)")
    what.add_argument(
        "-f", "--stepfactor", type=int, metavar="N", help="times the size before, instead of -i"
    )
    what.add_argument(
        "-o", "--redop", default="sum", metavar="NAME", help="sum, prod, min, max, avg, all (sum)"
    )
    what.add_argument("-d", "--datatype", "--dtype", metavar="NAME", help="or all (float)")
    what.add_argument("-r", "--root", default="0", metavar="RANK", help="of each group, or all (0)")
    what.add_argument("-n", "--iters", type=int, default=20, metavar="N", help="timed iterations (20)")
    what.add_argument("-w", "--warmup_iters", type=int, default=1, metavar="N", help="before them (1)")
    what.add_argument("-c", "--check", type=int, default=1, metavar="N", help="checked iterations (1)")
    what.add_argument(
        "-a", "--average", type=int, default=1, choices=(0, 1, 2, 3), help="time: rank 0, mean, min, max (1)"
    )
    what.add_argument(
        "-C", "--report_cputime", type=int, default=0, choices=(0, 1), help="time of this process alone (0)"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output, beside the table")
    output.add_argument("-J", "--output_file", "--json", type=Path, metavar="FILE", help="everything as JSON")
    output.add_argument("--csv", type=Path, metavar="FILE", help="the rows")
    output.add_argument("--plot", type=Path, metavar="FILE", help="a picture: FILE.png, .svg, .pdf")
    output.add_argument(
        "--links",
        type=Path,
        metavar="FILE",
        help="latency and bandwidth of each axis, for ds-config",
    )
    output.add_argument(
        "--buckets",
        metavar="PARAMETERS",
        help="print bucket sizes for a model of so many (7B)",
    )
    output.add_argument("--zero-stage", type=int, default=2, choices=(1, 2, 3), help="for --buckets (2)")


def _run(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.comm_perf.commands import comm_perf

    return comm_perf(options)
