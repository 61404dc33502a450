"""`npu-plugins checkpoint`: look at checkpoints, check and convert them."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(commands: argparse._SubParsersAction) -> None:
    """Add the family to the parser."""
    checkpoint = commands.add_parser("checkpoint", help="look at checkpoints, check them, convert them")
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION")
    inspect = actions.add_parser("inspect", help="say what a checkpoint is: kind, layout, step, parameters")
    inspect.set_defaults(run=_inspect)
    inspect.add_argument("directory", type=Path, metavar="DIR")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    verify = actions.add_parser("verify", help="read a checkpoint through; status 1 if a file is faulty")
    verify.set_defaults(run=_verify)
    verify.add_argument("directory", type=Path, metavar="DIR")
    convert = actions.add_parser(
        "convert", help="make another kind of checkpoint of one; no bit of a weight changes unless asked"
    )
    convert.set_defaults(run=_convert)
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


def _inspect(options: argparse.Namespace) -> int:
    from npu_plugins.checkpoint.commands import inspect_command

    return inspect_command(options)


def _verify(options: argparse.Namespace) -> int:
    from npu_plugins.checkpoint.commands import verify_command

    return verify_command(options)


def _convert(options: argparse.Namespace) -> int:
    from npu_plugins.checkpoint.commands import convert_command

    return convert_command(options)
