"""What the ring of last calls costs a collective: enqueued with the ring off and on, in turns.

    NPU_SIM=1 python benchmarks/ring_overhead.py [--device npu|cpu] [--ranks 1]

A ring is made once for a process, so each side runs in processes of its own, one after the other, again and
again; the smallest time of each side counts. It is processor time, so that neither waiting for another rank
nor other programs of a busy machine count: of the thread that enqueues, where the ring writes, and of the
whole process, as torch_npu's own threads look through what is recorded. A stack is part of each record: its
depth is given, since that is most of what a record costs. Nothing of npu_plugins runs in a call, on or off.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CALLS = 50
BLOCKS = 160
WARM_UP = 100
DEPTH = 20
RING_SIZE = 1000


def measure(rank: int, ranks: int, device: str, size: int, port: int, queue: Any) -> None:
    """Put microseconds of a call on rank 0 on `queue`: the least of its thread, the mean of its process."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_HCCL_TRACE_BUFFER_SIZE"] = str(size)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NPU_PLUGINS_HANG_WATCH="0")
    torch.set_num_threads(1)
    if device == "npu":
        torch.npu.set_device(rank)
    dist.init_process_group("hccl" if device == "npu" else "gloo", rank=rank, world_size=ranks)
    tensor = torch.ones(4, device=device)
    best = _at_depth(DEPTH, lambda: _times(tensor))
    if rank == 0:
        queue.put(best)
    dist.barrier()
    dist.destroy_process_group()


def _times(tensor: torch.Tensor) -> tuple[float, float]:
    for _ in range(WARM_UP):
        dist.all_reduce(tensor)
    tensor.tolist()
    times = []
    whole = time.process_time()
    for _ in range(BLOCKS):
        begun = time.thread_time()
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        times.append((time.thread_time() - begun) / CALLS * 1e6)
        tensor.tolist()  # what was enqueued is done before the next block
    return min(times), (time.process_time() - whole) / (BLOCKS * CALLS) * 1e6


def _at_depth(depth: int, call: Any) -> float:
    return call() if depth == 0 else _at_depth(depth - 1, call)


def one_side(ranks: int, device: str, size: int) -> tuple[float, float]:
    """Return the microseconds of a call with rings of `size`, of the thread and of the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(measure, args=(ranks, device, size, port, queue), nprocs=ranks)
    thread, process = queue.get()
    return float(thread), float(process)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("npu", "cpu"), default="npu" if hasattr(torch, "npu") else "cpu")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    times: dict[int, list[tuple[float, float]]] = {0: [], RING_SIZE: []}
    for _ in range(options.rounds):
        for size, found in times.items():
            found.append(one_side(options.ranks, options.device, size))
    simulated = " (simulated)" if os.environ.get("NPU_SIM") and options.device == "npu" else ""
    print(
        f"{options.device}{simulated}, ranks: {options.ranks}; all_reduce of 4 elements, {DEPTH} frames deep"
    )
    for place, whose in enumerate(("the thread that calls", "the whole process")):
        off, on = ([each[place] for each in times[size]] for size in (0, RING_SIZE))
        print(f"{whose}:")
        print(f"  ring off {min(off):8.2f} us a call   (rounds: {_told(off)})")
        print(f"  ring on  {min(on):8.2f} us a call   (rounds: {_told(on)})")
        print(f"  the ring adds {min(on) - min(off):.2f} us; rounds differ by {_spread(off, on):.2f} us")


def _told(times: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in times)


def _spread(*sides: list[float]) -> float:
    return max(statistics.fmean(found) - min(found) for found in sides)


if __name__ == "__main__":
    sys.exit(main())
