"""How well `ds-config memory` foretells the peak of torch_npu's allocator, on simulated NPUs.

    python benchmarks/memory_accuracy.py [--cases 'stage 2*'] [--json FILE] [--measured FILE] [--terms]

Every combination of accuracy/cases.json trains a small model with DeepSpeed on 2 to 4 simulated NPUs.
Measured is `torch.npu.max_memory_allocated` inside one step after two to warm up, on the rank where it is
highest; DeepSpeed's own estimator, which knows ZeRO stages 2 and 3 only, stands beside. Ends with 1 if the
median error exceeds 3 % or the worst one 10 %.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from accuracy.case import Case, load_cases  # noqa: E402

from ds_configs.memory import estimate  # noqa: E402
from tests.harness import HarnessError, RankFailure, RankPool  # noqa: E402
from tests.harness.npu import rank_environment, why_no_npu  # noqa: E402

MIB = 1 << 20
MEDIAN_LIMIT, WORST_LIMIT = 3.0, 10.0
IMPORTS = ("torch", "torch.distributed", "torch._dynamo", "transformers", "deepspeed", "accuracy.rank")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cases",
        nargs="+",
        default=["*"],
        metavar="GLOB",
        help="run only the cases of these names, in this order",
    )
    parser.add_argument("--timeout", type=float, default=180, metavar="S", help="seconds a case may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="predict anew what --json has kept")
    parser.add_argument("--terms", action="store_true", help="print each prediction's terms")
    return parser.parse_args()


def on_rank(fields: dict[str, Any]) -> dict[str, Any]:
    """Runs on a rank, which has torch and DeepSpeed; this process does without them."""
    from accuracy.rank import measure_case

    return measure_case(fields)


def run_case(pool: RankPool, case: Case, timeout: float) -> list[dict[str, Any]]:
    """Return what each rank of ``case`` measured."""
    with pool.world(case.ranks, "hccl") as world:
        return world.run(on_rank, asdict(case), timeout=timeout)


def compare(case: Case, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Set the prediction of each pipeline stage beside what its ranks measured; the worst rank is the
    row's."""
    stages = estimate(case.job()).stages
    rank = max(ranks, key=lambda measured: measured["peak"])
    predicted = max(stage.allocated for stage in stages)
    own = rank["deepspeed"]
    return {
        "case": case.name,
        "predicted": predicted,
        "measured": rank["peak"],
        "reserved": rank["reserved"],
        "error": 100 * (predicted / rank["peak"] - 1),
        "deepspeed": own,
        "deepspeed_error": None if own is None else 100 * (own / rank["peak"] - 1),
        "stage_errors": {
            str(stage.stage): 100
            * (stage.allocated / max(r["peak"] for r in ranks if r["stage"] == stage.stage) - 1)
            for stage in stages
        },
        "moment": stages[rank["stage"]].moment,
        "terms": dict(stages[rank["stage"]].terms),
        "ranks": ranks,
    }


def print_row(row: dict[str, Any], terms: bool) -> None:
    """Print one combination."""
    own = "     –        –" if row["deepspeed"] is None else (
        f"{row['deepspeed'] / MIB:8.1f} {row['deepspeed_error']:+7.1f}%"
    )  # fmt: skip
    sizes = f"{row['measured'] / MIB:8.1f} {row['predicted'] / MIB:8.1f}"
    print(f"{row['case']:52s} {sizes} {row['error']:+6.1f}%   {own}", flush=True)
    if terms:
        parts = ", ".join(f"{name} {size / MIB:.1f}" for name, size in row["terms"].items())
        print(f"    at {row['moment']}: {parts}")
        for number, rank in enumerate(row["ranks"]):
            print(
                f"    rank {number}: peak {rank['peak'] / MIB:.1f}, reserved {rank['reserved'] / MIB:.1f}, ",
                end="",
            )
            print(f"before {rank['before'] / MIB:.1f}, parameters {rank['parameters']:,}, ", end="")
            print({name: [round(v / MIB, 1) for v in values] for name, values in rank["marks"].items()})


def summarise(rows: list[dict[str, Any]]) -> bool:
    """Print median and worst errors; return whether they keep within the limits."""
    errors = sorted(abs(row["error"]) for row in rows)
    own = sorted(abs(row["deepspeed_error"]) for row in rows if row["deepspeed_error"] is not None)
    median, worst = statistics.median(errors), errors[-1]
    print(f"\n{len(rows)} combinations: median error {median:.1f} %, worst {worst:.1f} %")
    if own:
        theirs = f"median {statistics.median(own):.1f} %, worst {own[-1]:.1f} %"
        print(f"DeepSpeed's estimator on its {len(own)}: {theirs}")
    return median <= MEDIAN_LIMIT and worst <= WORST_LIMIT


def main() -> int:
    """Run the cases."""
    args = arguments()
    reason = why_no_npu()
    if reason:
        print(reason)
        return 2
    every = load_cases()
    named = [case for glob in args.cases for case in every if fnmatch.fnmatch(case.name, glob)]
    cases = list({case.name: case for case in named}.values())
    environment = dict(rank_environment(), PYTHONPATH=str(ROOT / "benchmarks"))
    head = f"{'combination (MiB)':52s} {'measured':>8s} {'ds-config':>8s} {'error':>7s}"
    print(f"{head}   {'DeepSpeed':>8s} {'error':>8s}")
    rows, failed = [], []
    if args.measured:
        kept = {row["case"]: row["ranks"] for row in json.loads(args.measured.read_text(encoding="utf-8"))}
        rows = [compare(case, kept[case.name]) for case in cases if case.name in kept]
        for row in rows:
            print_row(row, args.terms)
        return 0 if rows and summarise(rows) else 1
    with contextlib.closing(RankPool(environment, IMPORTS)) as pool:
        for case in cases:
            try:
                rows.append(compare(case, run_case(pool, case, args.timeout)))
            except (RankFailure, HarnessError) as failure:
                failed.append(case.name)
                print(f"{case.name:52s} FAILED: {failure}", flush=True)
                continue
            print_row(rows[-1], args.terms)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    good = bool(rows) and summarise(rows)
    if failed:
        print(f"not measured: {', '.join(failed)}")
    return 0 if good and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
