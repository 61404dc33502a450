"""The command `npu-plugins`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_plugins import __version__
from npu_plugins.errors import NpuPluginsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (1 with one sentence on stderr when it cannot be done)."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except NpuPluginsError as error:
        print(f"npu-plugins: error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="npu-plugins", description="Tools for training on Ascend NPUs.")
    parser.add_argument("--version", action="version", version=f"npu-plugins {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    simulator = commands.add_parser("simulator", help="the simulated NPUs that NPU_SIM=<number> turns on")
    actions = simulator.add_subparsers(required=True, metavar="ACTION")
    build = actions.add_parser(
        "build", help="compile the simulated CANN into the cache, if that is not done yet"
    )
    build.set_defaults(run=_simulator_build)
    info = actions.add_parser(
        "info", help="show what NPU_SIM and its companions ask for, and where the build is"
    )
    info.set_defaults(run=_simulator_info)
    clean = actions.add_parser("clean", help="delete everything the simulator has built")
    clean.set_defaults(run=_simulator_clean)
    _add_pipeline(commands)
    _add_checkpoint(commands)
    return parser


def _add_pipeline(commands: argparse._SubParsersAction) -> None:
    pipeline = commands.add_parser("pipeline", help="pipeline schedules on paper: timeline, bubble, memory")
    actions = pipeline.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", help="draw the timeline of one schedule, and say what it costs")
    show.set_defaults(run=_pipeline_show)
    show.add_argument(
        "--schedule", required=True, metavar="NAME", help="such as 1f1b or zb-v; `compare` lists them"
    )
    compare = actions.add_parser("compare", help="put all schedules side by side")
    compare.set_defaults(run=_pipeline_compare)
    for parser in (show, compare):
        parser.add_argument(
            "-p", dest="ranks", type=int, required=True, metavar="RANKS", help="pipeline ranks"
        )
        parser.add_argument(
            "-m", dest="micro_batches", type=int, required=True, metavar="MICRO_BATCHES", help="of one step"
        )
        parser.add_argument(
            "-v",
            dest="virtual_stages",
            type=int,
            metavar="STAGES",
            help="stages on each rank, for interleaved (2)",
        )
        for name in ("forward", "input-gradient", "weight-gradient"):
            parser.add_argument(
                f"--{name}", default="1", metavar="TIME", help="of one micro-batch on one rank (1)"
            )
        parser.add_argument(
            "--transfer", default="0", metavar="TIME", help="of one message, beside compute (0)"
        )
    show.add_argument("--svg", type=Path, metavar="FILE", help="draw it there, too")
    show.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a Chrome trace, 1 ms for each unit of time"
    )
    show.add_argument("--actions", action="store_true", help="print what each rank does, with its transfers")


def _pipeline_show(options: argparse.Namespace) -> int:
    from npu_plugins.pipeline.commands import show

    return show(options)


def _pipeline_compare(options: argparse.Namespace) -> int:
    from npu_plugins.pipeline.commands import compare

    return compare(options)


def _add_checkpoint(commands: argparse._SubParsersAction) -> None:
    checkpoint = commands.add_parser("checkpoint", help="look at checkpoints, check them, convert them")
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION")
    inspect = actions.add_parser("inspect", help="say what a checkpoint is: kind, layout, step, parameters")
    inspect.set_defaults(run=_checkpoint_inspect)
    inspect.add_argument("directory", type=Path, metavar="DIR")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    verify = actions.add_parser("verify", help="read a checkpoint through; status 1 if a file is faulty")
    verify.set_defaults(run=_checkpoint_verify)
    verify.add_argument("directory", type=Path, metavar="DIR")
    convert = actions.add_parser(
        "convert", help="make another kind of checkpoint of one; no bit of a weight changes unless asked"
    )
    convert.set_defaults(run=_checkpoint_convert)
    convert.add_argument("source", type=Path, metavar="SRC")
    convert.add_argument("destination", type=Path, metavar="DST", help="a directory that is new or empty")
    convert.add_argument(
        "--to",
        required=True,
        choices=("hf", "universal", "sharded", "training"),
        help="hf: what save_pretrained writes; universal: DeepSpeed's, for any layout; sharded: "
        "safetensors for each rank of tp x pp; training: what NpuTrainer goes on from at any layout",
    )
    convert.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks of sharded (1)")
    convert.add_argument("--pp", type=int, default=1, help="pipeline stages of sharded (1)")
    convert.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="convert weights to it")
    convert.add_argument(
        "--config", type=Path, metavar="DIR", help="with config.json and tokenizer, if SRC has none"
    )


def _checkpoint_inspect(options: argparse.Namespace) -> int:
    from npu_plugins.checkpoint.commands import inspect_command

    return inspect_command(options)


def _checkpoint_verify(options: argparse.Namespace) -> int:
    from npu_plugins.checkpoint.commands import verify_command

    return verify_command(options)


def _checkpoint_convert(options: argparse.Namespace) -> int:
    from npu_plugins.checkpoint.commands import convert_command

    return convert_command(options)


def _simulator_build(options: argparse.Namespace) -> int:
    from npu_plugins.simulator.build import ensure_built

    print(ensure_built())
    return 0


def _simulator_info(options: argparse.Namespace) -> int:
    from npu_plugins.simulator.build import find_built
    from npu_plugins.simulator.settings import cache_root, format_bytes, settings_from, simulator_requested
    from npu_plugins.simulator.toolchain import find_toolchain

    if simulator_requested():
        settings = settings_from()
        print(f"simulated NPUs: {settings.npus}, of which {settings.visible_npus} visible here")
        print(f"memory of each: {format_bytes(settings.hbm_bytes)}")
    else:
        print("simulated NPUs: none (NPU_SIM is not set)")
    toolchain = find_toolchain()
    print(f"compiler:       {toolchain.compiler_version()}")
    print(f"cache:          {cache_root()}")
    print(f"build:          {find_built() or 'not built yet'}")
    return 0


def _simulator_clean(options: argparse.Namespace) -> int:
    from npu_plugins.simulator.build import clean
    from npu_plugins.simulator.settings import cache_root, format_bytes

    print(f"{format_bytes(clean())} freed in {cache_root()}")
    return 0
