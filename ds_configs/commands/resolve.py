"""``ds-config resolve``: the configuration as DeepSpeed gets it from HF, every "auto" replaced.

The flags are TrainingArguments' own, with its defaults: give those of your run. The table on standard error
says who fills each value in a run: HF, accelerate, or nobody, so that the value is ds-config's choice.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError

HELP = 'replace every "auto" as HF does it, and say who fills it'
FLOATS = ("max_grad_norm", "learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay")
STEPS = {
    "warmup_steps": (float, "steps of warm-up, or below 1 the share of all steps"),
    "max_steps": (int, "optimizer steps of the run"),
    "num_train_epochs": (float, "epochs, where --max_steps is not given"),
    "num_examples": (int, "sequences of the training set, from which epochs become steps"),
}
SWITCHES = ("dataloader_drop_last", "fp16", "bf16", "fp16_full_eval", "bf16_full_eval", "save_on_each_node")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: the fields of TrainingRun, spelt with _ as HF does or with -."""
    parser.add_argument("file", metavar="FILE", help="a configuration; - for standard input")
    parser.add_argument("--world-size", type=int, required=True, metavar="N", help="ranks of the whole job")
    parser.add_argument("--model", metavar="DIR|NAME", help="the model, whose width decides bucket sizes")
    parser.add_argument("--hidden", type=int, metavar="N", help="its width, where there is no config.json")
    parser.add_argument("--output", "-o", metavar="FILE", help="write there instead of to standard output")
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        _add(parser, name, type=int, metavar="N")
    for name in FLOATS:
        _add(parser, name, type=float, metavar="X")
    for name, (kind, text) in STEPS.items():
        _add(parser, name, type=kind, metavar="N", help=text)
    for name in SWITCHES:
        _add(parser, name, action="store_true")


def run(args: argparse.Namespace) -> int:
    """Print the filled configuration, and on standard error who filled what."""
    from ds_configs.generate import to_text
    from ds_configs.resolve import TrainingRun, read_config, resolve

    flags = {each.name: getattr(args, each.name) for each in fields(TrainingRun) if hasattr(args, each.name)}
    resolution = resolve(read_config(args.file), TrainingRun(**flags), _width(args))
    text = to_text(resolution.config)
    if args.output is None:
        print(text, end="")
    else:
        try:
            Path(args.output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise DsConfigError(f"{args.output} cannot be written: {error.strerror}; give another") from None
    _print_table(resolution.fills)
    return 0


def _width(args: argparse.Namespace) -> Any:
    from ds_configs.resolve import Width, model_width

    if args.model is not None and args.hidden is not None:
        raise DsConfigError("--model and --hidden both say the width; give one of them")
    if args.hidden is not None:
        return Width(args.hidden, "--hidden")
    return model_width(args.model) if args.model is not None else None


def _print_table(fills: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("key", "value", "who fills it", "from what")
    for fill in fills:
        value = "(left out)" if fill.value is None else json.dumps(fill.value)
        table.add_row(fill.key, value, fill.filler, fill.source)
    # A pipe has no width: nothing is to be cut off there.
    console = Console(file=sys.stderr, **({} if sys.stderr.isatty() else {"width": 240}))  # type: ignore[arg-type]
    console.print(table if fills else 'nothing was "auto"', markup=False)


def _add(parser: argparse.ArgumentParser, name: str, **options: Any) -> None:
    """Add TrainingArguments' flag ``name`` in both spellings; left out, TrainingRun's default holds."""
    spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
    parser.add_argument(*spellings, dest=name, default=argparse.SUPPRESS, **options)
