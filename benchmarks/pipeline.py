"""What a training step costs under our pipeline engine, DeepSpeed's and torch's, in one run.

Two ranks over gloo with one thread each train the same GPT (hidden 256, 8 blocks, vocabulary 512, sequence
128, fp32), from the same model code, cut at the same places, on 8 micro-batches of 4 rows. A step is forward
and backward of all micro-batches, one step of SGD without momentum, the gradients dropped, and the mean loss
as a number where the engine gives one; for everybody. `train_batch` does all of that in our engine and in
DeepSpeed's (PipelineModule: 1F1B; DualPipeVModule: DualPipeV); torch.distributed.pipelining's `step` does
forward and backward, and its caller the rest (outputs not returned). The floor is the slower rank's share of
the layers with nothing sent and nobody waited for.

Each contender's first step is held to one process: the loss and every gradient. Then, in every round all run
in turn, each round starts with another one, a barrier before each; told is the rank that took longest, and
ratios are taken inside a round. Memory is the second step's peak of living tensor bytes as torch's CPU
allocator counts them, from before the contender was built, less its parameters.

Goals: ours at most 1.01 of the best peer at the same schedule, with no more memory; our best at least 1.08
times as fast as DeepSpeed's 1F1B, and faster than every peer.

Run as ``python benchmarks/pipeline.py`` on an otherwise idle machine with two cores. Rounds of earlier runs
can be added to: ``--add FILE`` takes what ``--json FILE`` wrote for the same contenders.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gpt_pipeline.case import RANKS
from gpt_pipeline.contenders import ENTRIES
from side_by_side.launch import run_ranks


def add_rounds(figures: dict[str, Any], earlier: dict[str, Any]) -> None:
    """Put an earlier run's rounds before these.

    Raises:
        SystemExit: its contenders are others.
    """
    if set(figures) != set(earlier):
        other = ", ".join(sorted(set(figures) ^ set(earlier)))
        raise SystemExit(
            f"the runs are of different contenders ({other}); add what the same --only measured."
        )
    for name, row in figures.items():
        row["ms"] = earlier[name]["ms"] + row["ms"]
        if "bytes" in earlier[name]:
            row.setdefault("bytes", earlier[name]["bytes"])


def chosen(words: list[str]) -> list[str]:
    """The contenders whose name begins with one of the words, the floor always."""
    return [
        name for name in ENTRIES if name == "floor" or any(name.lower().startswith(w.lower()) for w in words)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=600, help="begin no round after so long")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        help='beginnings of names, such as ours "torch ZBV"; by default all',
    )
    parser.add_argument("--no-memory", action="store_true", help="count no memory, which takes a step each")
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], help="earlier figures whose rounds count too"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, help="also draw the medians into this file (.png, .svg, .pdf)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = chosen(arguments.only)
    if arguments.rounds < 2:
        parser.error(f"quartiles need two rounds or more; got {arguments.rounds}")
    if len(names) == 1:
        parser.error(f"--only {' '.join(arguments.only)} names no contender; they are {', '.join(ENTRIES)}")
    if arguments.rank is not None:
        from gpt_pipeline.rank import run

        figures = run(
            arguments.rank,
            arguments.store,
            names,
            arguments.rounds,
            arguments.seconds,
            not arguments.no_memory,
        )
        if arguments.rank == 0:
            arguments.json.write_text(json.dumps(figures))
        return
    from gpt_pipeline.report import goals, plot, print_table

    asked = [
        "--rounds",
        str(arguments.rounds),
        "--seconds",
        str(arguments.seconds),
        "--only",
        *arguments.only,
    ]
    asked += ["--no-memory"] * arguments.no_memory
    figures = run_ranks(__file__, asked, RANKS, {"DS_ACCELERATOR": "cpu"})
    for path in arguments.add:
        add_rounds(figures, json.loads(path.read_text()))
    print_table(figures)
    print("\n".join(goals(figures)))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.plot:
        plot(figures, arguments.plot)


if __name__ == "__main__":
    main()
