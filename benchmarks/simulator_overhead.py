"""What the simulated NPU costs against plain CPU, and its all-reduce against gloo, alternated in one run.

Three figures, each a ratio or a difference of two things measured in turn on this machine:

* per operator: time of a call on ``npu`` minus the same call on ``cpu``, each the fastest of its rounds,
  since whatever else the machine does can only add to so short a call (goal: at most 6 us);
* a training step of a 10 M-parameter Llama on ``npu`` over the same step on ``cpu`` (goal: at most 1.25);
* an all-reduce over two ranks, gloo's time over simulated HCCL's (goal: at least 1.5), at 1, 16 and 64 MiB.

Run as ``python benchmarks/simulator_overhead.py`` on an otherwise idle machine; ``--json FILE`` keeps the
figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("NPU_SIM", "2")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

OPERATOR_GOAL_US = 6.0
STEP_GOAL_RATIO = 1.25
ALL_REDUCE_GOAL_RATIO = 1.5
ALL_REDUCE_MIB = (1, 16, 64)


def operators(device: str) -> dict[str, Callable[[], object]]:
    """Small calls whose time is nearly all overhead, on tensors of 8 x 8."""
    a, b = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    leaf = a.clone().requires_grad_()
    index = torch.tensor([1, 2], device=device)
    return {
        "add": lambda: a + b,
        "add_": lambda: a.add_(1.0),
        "matmul": lambda: a @ b,
        "sum": lambda: a.sum(),
        "cat": lambda: torch.cat([a, b]),
        "softmax": lambda: a.softmax(-1),
        "index": lambda: a[index],
        "mul with autograd": lambda: leaf * b,
        "copy_": lambda: a.copy_(b),
        "to bfloat16": lambda: a.to(torch.bfloat16),
        "empty": lambda: torch.empty(8, 8, device=device),
        "_foreach_add_": lambda: torch._foreach_add_([a, b], 1.0),
    }


def seconds_a_call(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def measure_operators(rounds: int = 15, calls: int = 400) -> dict[str, dict[str, float]]:
    """Time of a call on each device, the fastest of `rounds`, and their difference, in microseconds."""
    on_cpu, on_npu = operators("cpu"), operators("npu:0")
    figures = {}
    for name in on_cpu:
        seconds_a_call(on_npu[name], calls)
        pairs = [
            (seconds_a_call(on_cpu[name], calls), seconds_a_call(on_npu[name], calls)) for _ in range(rounds)
        ]
        cpu, npu = (min(seconds) * 1e6 for seconds in zip(*pairs, strict=True))
        figures[name] = {"cpu_us": cpu, "npu_us": npu, "overhead_us": npu - cpu}
    return figures


def llama_step(device: str) -> tuple[Callable[[], float], int]:
    """A training step (forward, backward, AdamW) of a Llama on 4 x 128 tokens, and its parameter count."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=320,
        intermediate_size=864,
        num_hidden_layers=8,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (4, 128)).to(device)

    def step() -> float:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step, sum(parameter.numel() for parameter in model.parameters())


def measure_step(rounds: int = 9) -> dict[str, float]:
    """Median ratio of a step on the simulated NPU to one on the CPU, and both times in milliseconds."""
    (cpu_step, parameters), (npu_step, _) = llama_step("cpu"), llama_step("npu:0")
    losses = [(cpu_step(), npu_step()) for _ in range(2)]
    pairs = [(seconds_a_call(cpu_step, 1), seconds_a_call(npu_step, 1)) for _ in range(rounds)]
    return {
        "parameters": parameters,
        "largest_loss_difference": max(abs(cpu - npu) for cpu, npu in losses),
        "cpu_ms": statistics.median(cpu for cpu, _ in pairs) * 1e3,
        "npu_ms": statistics.median(npu for _, npu in pairs) * 1e3,
        "ratio": statistics.median(npu / cpu for cpu, npu in pairs),
    }


def all_reduce_rank(rank: int, store: Path, rounds: int) -> None:
    """One of the two ranks: prints, from rank 0, a JSON object of medians by size."""
    torch.npu.set_device(rank)
    dist.init_process_group("cpu:gloo,npu:hccl", init_method=f"file://{store}", rank=rank, world_size=2)
    figures = {}
    for mib in ALL_REDUCE_MIB:
        host, device = torch.ones(mib << 18), torch.ones(mib << 18, device="npu")
        pairs = []
        for _ in range(rounds + 2):
            seconds = []
            for tensor in (host, device):
                tensor.fill_(1.0)
                dist.barrier()
                start = time.perf_counter()
                dist.all_reduce(tensor)
                torch.npu.synchronize()
                seconds.append(time.perf_counter() - start)
                if tensor[0].item() != 2.0 or tensor[-1].item() != 2.0:
                    raise RuntimeError(
                        f"the all-reduce of {mib} MiB on {tensor.device} is wrong: {tensor[0]}"
                    )
            pairs.append(seconds)
        pairs = pairs[2:]  # the first rounds touch fresh memory
        figures[mib] = {
            "gloo_ms": statistics.median(gloo for gloo, _ in pairs) * 1e3,
            "hccl_ms": statistics.median(hccl for _, hccl in pairs) * 1e3,
            "ratio": statistics.median(gloo / hccl for gloo, hccl in pairs),
        }
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(figures), flush=True)


def measure_all_reduce(rounds: int = 21) -> dict[str, dict[str, float]]:
    """gloo's time over simulated HCCL's for two ranks, by MiB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--store", f"{folder}/store", "--rounds", str(rounds), "--rank"]
        ranks = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)
        ]
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank of the all-reduce measurement failed; its error is above.")
    return json.loads(outputs[0].splitlines()[-1])


def report(operators_us: dict, step: dict, all_reduce: dict) -> None:
    print(f"\n{'operator':20s} {'cpu us':>8s} {'npu us':>8s} {'overhead us':>12s}")
    for name, row in operators_us.items():
        print(f"{name:20s} {row['cpu_us']:8.2f} {row['npu_us']:8.2f} {row['overhead_us']:12.2f}")
    worst = max(row["overhead_us"] for row in operators_us.values())
    print(f"largest overhead {worst:.2f} us, goal at most {OPERATOR_GOAL_US} us")
    print(
        f"\nLlama of {step['parameters'] / 1e6:.1f} M parameters, one step: cpu {step['cpu_ms']:.0f} ms,"
        f" simulated NPU {step['npu_ms']:.0f} ms, ratio {step['ratio']:.3f}, goal at most {STEP_GOAL_RATIO};"
        f" largest difference of the losses {step['largest_loss_difference']:.1e}"
    )
    columns = f"{'gloo ms':>8s} {'hccl ms':>8s} {'gloo / hccl':>12s}"
    print(f"\n{'all-reduce, 2 ranks':20s} {columns}  (simulated HCCL)")
    for mib, row in all_reduce.items():
        print(f"{mib + ' MiB':20s} {row['gloo_ms']:8.2f} {row['hccl_ms']:8.2f} {row['ratio']:12.2f}")
    print(f"goal at least {ALL_REDUCE_GOAL_RATIO}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=21, help="rounds of the all-reduce measurement")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.rank is not None:
        all_reduce_rank(arguments.rank, arguments.store, arguments.rounds)
        return
    torch.npu.set_device(0)
    figures = {
        "operators": measure_operators(),
        "llama_step": measure_step(),
        "all_reduce": measure_all_reduce(arguments.rounds),
    }
    report(figures["operators"], figures["llama_step"], figures["all_reduce"])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
