"""How soon ``ds-config`` answers, from the start of the interpreter to its end.

``--help`` and ``generate`` are to take less than 150 ms. Each is started in turn, and the fastest and the
median of the runs are printed: whatever else the machine does can only add to so short a run, so the fastest
counts.

Run as ``python benchmarks/ds_config_start.py`` on an otherwise idle machine; above the goal it exits with 1.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

GOAL_MS = 150.0
COMMANDS = {
    "--help": ["--help"],
    "generate, for HF": ["generate", "--for", "hf", "--stage", "3", "--offload-optimizer", "cpu"],
    "generate, for DeepSpeed": [
        *("generate", "--for", "deepspeed", "--stage", "3", "--micro-batch", "1", "--world-size", "8"),
        *("--model", "llama-1b", "--optimizer", "AdamW", "lr=1e-4"),
    ],
    "generate, from a preset": ["generate", "--preset", "docs_zero3"],
}


def milliseconds(arguments: list[str]) -> float:
    """Return how long one run with ``arguments`` takes."""
    program = str(Path(sys.executable).with_name("ds-config"))
    start = time.perf_counter()
    subprocess.run([program, *arguments], check=True, capture_output=True)
    return (time.perf_counter() - start) * 1e3


def main() -> int:
    """Measure and print; return 1 if a command's fastest run is over the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="runs of each command")
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            times[name].append(milliseconds(arguments))
    for name, taken in times.items():
        verdict = "ok" if min(taken) < GOAL_MS else f"over {GOAL_MS:.0f} ms"
        print(
            f"{name:<24} fastest {min(taken):6.1f} ms, median {statistics.median(taken):6.1f} ms  {verdict}"
        )
    return int(any(min(taken) >= GOAL_MS for taken in times.values()))


if __name__ == "__main__":
    sys.exit(main())
