"""``ds-config plan``: which strategy trains a model fastest on given cards among those that fit.

Every division of the cards over data, tensor, pipeline and expert parallelism is timed by a model of the
hardware, with each ZeRO stage, offload, recomputation, schedule and micro-batch; the fastest that fits is
proposed, and each other family is told why it lost. Exit status 1: nothing fits, and what would.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ds_configs.errors import DsConfigError
from ds_configs.sizes import parse_bytes

if TYPE_CHECKING:
    from ds_configs.hardware import Hardware

HELP = "propose the fastest strategy that fits"
DOES_NOT_FIT = 1
GB, MIB = 1e9, 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", metavar="DIR|NAME", help="directory with a config.json, or a known name")
    model.add_argument("--params", metavar="SIZE", help="a GPT of this many parameters, such as 7.5B")
    parser.add_argument("--npus", type=int, required=True, metavar="N", help="cards of the whole job")
    parser.add_argument("--seq", type=int, required=True, metavar="TOKENS", help="tokens of a sequence")
    parser.add_argument(
        "--global-batch", type=int, required=True, metavar="N", help="sequences of an optimizer step"
    )
    parser.add_argument(
        "--hardware", default="ascend-910b2", metavar="NAME", help="the card (default: %(default)s)"
    )
    for flag, what in (("--hbm", "memory of a card"), ("--host-memory", "host memory, a card's share")):
        parser.add_argument(flag, metavar="SIZE", help=f"{what}, such as 64GiB (default: the card's)")
    for flag, metavar, what in (
        ("--link-bandwidth", "GB/S", "fast links of a card, to all peers, in one direction"),
        ("--peer-bandwidth", "GB/S", "fast links of a card, to one peer, in one direction"),
        ("--network-bandwidth", "GB/S", "network of a card between nodes, in one direction"),
    ):
        parser.add_argument(flag, type=float, metavar=metavar, help=f"{what} (default: the card's)")
    for flag, choices in (("--dtype", ("bf16", "fp16", "fp32")), ("--attention", ("flash", "eager"))):
        parser.add_argument(flag, choices=choices, default=choices[0], help="default: %(default)s")
    parser.add_argument(
        "--margin",
        type=float,
        default=0.1,
        metavar="PART",
        help="part of the memory to leave free (default: %(default)s, the memory model's worst error)",
    )
    parser.add_argument(
        "--hccl-buffer",
        default="200MiB",
        metavar="SIZE",
        help="HCCL_BUFFSIZE (default: %(default)s)",
    )
    parser.add_argument("--today", action="store_true", help="leave out engines that are still to come")
    parser.add_argument("--script", default="train.py", metavar="FILE", help="program of the launch command")
    parser.add_argument("--output", metavar="FILE", help="write the proposal's ds_config here")
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="json: seconds, bytes and the same reasons (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan and write its configuration; 1 where nothing fits."""
    from ds_configs.generate import to_text as config_text
    from ds_configs.models import find_or_size
    from ds_configs.plan import PlanRequest, ds_config, nearest_miss, plan, to_data, to_text

    request = PlanRequest(
        shape=find_or_size(args.model, args.params, args.seq),
        npus=args.npus,
        hardware=_hardware(args),
        seq=args.seq,
        global_batch=args.global_batch,
        dtype=args.dtype,
        attention=args.attention,
        margin=args.margin,
        hccl_buffer=parse_bytes(args.hccl_buffer, least=MIB),
        today_only=args.today,
    )
    found = plan(request)
    config_file = args.output or "ds_config.json"
    miss = None if found.winner else nearest_miss(found)
    if args.format == "json":
        data = {**to_data(found, args.script, config_file), "nearest_miss": miss}
        print(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        print(to_text(found, args.script, config_file), end="")
        if miss:
            print(miss)
    if found.winner is None:
        return DOES_NOT_FIT
    if args.output:
        _write(args.output, config_text(ds_config(request, found.winner.candidate)[0]))
    return 0


def _hardware(args: argparse.Namespace) -> Hardware:
    from ds_configs.hardware import load_hardware

    def in_bytes(gigabytes: float | None) -> float | None:
        return None if gigabytes is None else gigabytes * GB

    return load_hardware(args.hardware).with_figures(
        hbm_bytes=None if args.hbm is None else parse_bytes(args.hbm, least=MIB),
        host_bytes=None if args.host_memory is None else parse_bytes(args.host_memory, least=MIB),
        link_bandwidth=in_bytes(args.link_bandwidth),
        peer_bandwidth=in_bytes(args.peer_bandwidth),
        network_bandwidth=in_bytes(args.network_bandwidth),
    )


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DsConfigError(f"cannot write {path}: {error.strerror}; give another --output") from error
