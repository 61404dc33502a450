"""What our tensor-parallel layers cost beside the floor of the hardware and beside others, in one run.

Measured is forward and backward of the MLP pair (column-parallel, then row-parallel layer, no bias, no
activation between, fp32) over two ranks with one thread each, at two shapes:

* 1024→4096, 8×128 tokens: the matrix products rule; goal: ours at most 1.03 of the floor;
* 128→512, 4×32 tokens: the overhead rules; goal: ours at least as fast as every peer.

The floor is six ``torch.mm`` and two ``all_reduce`` on the same tensors with nothing around them. The peers
are a pair written by hand with an autograd function for each of the paper's f and g, megatron-core's layers
and DTensor's plan styles. Each is held to the unsharded result before it is timed. In every round all run in
turn, each round starts with another one, and ratios are taken inside a round; told is the rank that took
longest.

Run as ``python benchmarks/tensor_parallel.py`` on an otherwise idle machine with two cores or more.
megatron-core is no dependency of this project; without it the others are measured. To have it beside this
project's packages and not among them::

    pip install --no-deps --target PEERS megatron-core    # measured with 0.16.1
    PYTHONPATH=PEERS python benchmarks/tensor_parallel.py --plot pair.png --json pair.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from side_by_side.launch import run_ranks

RANKS = 2


def measure(device: str, rounds: dict[str, int]) -> dict[str, Any]:
    """Start the ranks for one kind of device and return what rank 0 tells."""
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # megatron-core warns without, card or not
    if device == "npu":
        environment["NPU_SIM"] = str(RANKS)
    arguments = ["--devices", device, "--rounds", json.dumps(rounds)]
    return run_ranks(__file__, arguments, RANKS, environment)


def as_rank(arguments: argparse.Namespace) -> None:
    from mlp_pair.rank import run

    figures = run(arguments.devices[0], arguments.rank, RANKS, arguments.store, json.loads(arguments.rounds))
    if arguments.rank == 0:
        arguments.json.write_text(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--devices", nargs="+", choices=("npu", "cpu"), default=["npu", "cpu"], help="simulated NPUs, gloo"
    )
    parser.add_argument("--large-rounds", type=int, default=25, help="rounds at 1024→4096; 0: not measured")
    parser.add_argument("--small-rounds", type=int, default=201, help="rounds at 128→512; 0: not measured")
    parser.add_argument("--json", type=Path, help="also write the time of every round to this file")
    parser.add_argument("--plot", type=Path, help="also draw the medians into this file (.png, .svg, .pdf)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        as_rank(arguments)
        return
    from mlp_pair.report import plot, print_tables

    asked = {"large": arguments.large_rounds, "small": arguments.small_rounds}
    rounds = {shape: count for shape, count in asked.items() if count}
    if not rounds or any(count < 2 for count in rounds.values()):
        parser.error(f"a shape needs two rounds or more, and one shape at least; got {asked}")
    figures = {device: measure(device, rounds) for device in arguments.devices}
    print_tables(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.plot:
        plot(figures, arguments.plot)


if __name__ == "__main__":
    main()
