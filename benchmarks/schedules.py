"""How long schedules take on paper: made, simulated, completed with transfers and validated.

    python benchmarks/schedules.py                # 64 ranks, 512 micro-batches
    python benchmarks/schedules.py -p 16 -m 256 --rounds 5

Shown are milliseconds of processor time, the fastest of several rounds; no torch is imported.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

from npu_plugins.pipeline.schedules import SCHEDULES, add_communication, build_schedule, simulate, validate

_Result = TypeVar("_Result")


def fastest(rounds: int, work: Callable[[], _Result]) -> tuple[float, _Result]:
    """Return the processor time, in milliseconds, of the fastest round, and what the last one returned."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        result = work()
        times.append((time.process_time() - began) * 1e3)
    return min(times), result


def measure(name: str, ranks: int, micro_batches: int, rounds: int) -> list[float]:
    """Return how many actions and transfers a schedule has, and the milliseconds of each step."""
    made, schedule = fastest(rounds, lambda: build_schedule(name, ranks, micro_batches))
    simulated, _ = fastest(rounds, lambda: simulate(schedule))
    completed, complete = fastest(rounds, lambda: add_communication(schedule))
    validated, report = fastest(rounds, lambda: validate(complete))
    return [
        sum(map(len, schedule.steps)),
        sum(report.transfers),
        made,
        simulated,
        completed,
        validated,
        made + simulated + completed + validated,
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("-p", dest="ranks", type=int, default=64, help="pipeline ranks (64)")
    parser.add_argument("-m", dest="micro_batches", type=int, default=512, help="of one step (512)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest is shown (3)")
    options = parser.parse_args()
    columns = ("actions", "transfers", "make", "simulate", "complete", "validate", "all")
    print(f"{options.ranks} ranks, {options.micro_batches} micro-batches; ms")
    print(f"{'schedule':<12}" + "".join(f"{column:>11}" for column in columns))
    for name in SCHEDULES:
        numbers = measure(name, options.ranks, options.micro_batches, options.rounds)
        print(f"{name:<12}" + "".join(f"{number:>11.0f}" for number in numbers))


if __name__ == "__main__":
    main()
