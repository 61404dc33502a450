"""``ds-config generate``: a configuration from what you want of it.

KEY=VALUE are DeepSpeed's own keys of a section, as in ``--zero overlap_comm=true``; null leaves a key out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError

HELP = "write a configuration: stage, offload, precision, batch, optimizer, parallelism"
PAIRS = "KEY=VALUE"
# Options that take KEY=VALUE, the field each fills, and what it holds.
SECTIONS = {
    "zero": "zero_optimization, such as reduce_bucket_size=2e8",
    "fp16": "loss scaling, such as initial_scale_power=16",
    "bf16": "bf16, such as check_grad_overflow=false",
    "pipeline": "pipeline: DeepSpeed's activation_checkpoint_interval=1, or npu_plugins' schedule=zb-v",
    "tensor_parallel": "tensor_parallel, AutoTP's",
    "aio": "aio, file access of offload to nvme",
}
# Options that take a name and then KEY=VALUE.
NAMED = {
    "optimizer": "AdamW, Adam, Lion, Adagrad, SGD, Lamb, or none for the program's own (default AdamW)",
    "scheduler": "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest or none (default none)",
    "offload_optimizer": "none, cpu or nvme",
    "offload_param": "none, cpu or nvme",
}
DEFAULT_NAMES = {"optimizer": "AdamW"}
WHOLE = {
    "train_batch": "sequences a step over all ranks",
    "micro_batch": "sequences a rank takes at once",
    "accumulation": "micro-batches a step",
    "world_size": "ranks of the whole job, to check and complete the batch",
    "tp": "tensor-parallel ranks",
    "pp": "pipeline stages (with a PipelineModule)",
    "hidden": "width of the model, which stage 3 needs for plain DeepSpeed",
    "steps_per_print": "steps between two lines of DeepSpeed's",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: one for each field of ConfigRequest."""
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument(
        "--for",
        dest="target",
        metavar="hf|deepspeed",
        help='who reads the file: hf (Trainer, accelerate: "auto" where HF fills it) or deepspeed (numbers)',
    )
    parser.add_argument("--preset", metavar="NAME", help="start from what `ds-config list` prints")
    parser.add_argument("--output", "-o", metavar="FILE", help="write there instead of to standard output")
    parser.add_argument("--stage", type=_value, metavar="0|1|2|3", help="ZeRO stage")
    parser.add_argument(
        "--precision", metavar="TYPE", help="fp32, bf16, fp16 or auto (hf: by its flags; deepspeed: bf16)"
    )
    for name, text in WHOLE.items():
        parser.add_argument(_option(name), type=_value, metavar="N", help=text)
    parser.add_argument(
        "--tp-by", metavar="WHO", help="autotp (default), or mpu: your program divides the layers"
    )
    parser.add_argument("--model", metavar="DIR|NAME", help="take --hidden from its config.json")
    parser.add_argument(
        "--links",
        metavar="FILE",
        help="choose bucket sizes for the links that npu-plugins comm-perf --links measured",
    )
    parser.add_argument("--params", metavar="SIZE", help="parameters of the model, such as 7B, for --links")
    parser.add_argument(
        "--clipping", type=_value, metavar="NORM", help="largest gradient norm, 0 for none (default 1)"
    )
    for name, text in NAMED.items():
        parser.add_argument(_option(name), nargs="+", action="append", metavar=("NAME", PAIRS), help=text)
    parser.add_argument("--nvme-path", metavar="DIR", help="folder on the NVMe drive of each machine")
    for name, text in SECTIONS.items():
        parser.add_argument(_option(name), nargs="+", action="extend", metavar=PAIRS, help=text)
    parser.add_argument(
        "--activation-checkpointing",
        nargs="*",
        action="extend",
        metavar=PAIRS,
        help="add the section, for deepspeed.checkpointing",
    )
    parser.add_argument(
        "--grad-accum-dtype", metavar="TYPE", help="type in which gradients accumulate, such as fp32"
    )


def run(args: argparse.Namespace) -> int:
    """Print or write the configuration; what the file cannot say goes to stderr."""
    from ds_configs.generate import ConfigRequest, generate, notes, to_text

    request = ConfigRequest.from_mapping(_fields(args))
    text = to_text(generate(request))
    output = getattr(args, "output", None)
    if output is None:
        print(text, end="")
    else:
        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise DsConfigError(
                f"{output} cannot be written: {error.strerror}; give another --output"
            ) from None
    for sentence in notes(request):
        print(f"ds-config: note: {sentence}", file=sys.stderr)
    return 0


def _fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the request's fields: the preset's, over which goes what the command line says."""
    from ds_configs.presets import preset_request

    given = vars(args)
    fields = preset_request(given["preset"]) if "preset" in given else {}
    for name in (
        "target",
        "stage",
        "precision",
        *WHOLE,
        "tp_by",
        "clipping",
        "nvme_path",
        "grad_accum_dtype",
    ):
        if name in given:
            fields[name] = given[name]
    for name in NAMED:
        if name in given:
            words, *more = given[name]
            if more:
                raise DsConfigError(f"{_option(name)} is given twice; give it once, with all its {PAIRS}")
            _name_and_pairs(fields, name, words)
    for name in (*SECTIONS, "activation_checkpointing"):
        if name in given:
            fields[name] = {**(fields.get(name) or {}), **_pairs(name, given[name])}
    if "model" in given:
        from ds_configs.resolve.width import model_width

        if "hidden" in given:
            raise DsConfigError("--model and --hidden both say the width; give one of them")
        fields["hidden"] = model_width(given["model"]).hidden
    if "links" in given:
        fields["zero"] = {**_buckets(given, fields), **(fields.get("zero") or {})}
    elif "params" in given:
        raise DsConfigError("--params is the size of the model for --links; give that too, or leave it out")
    return fields


def _buckets(given: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, int]:
    """Return bucket sizes for the links of ``--links``; each rank holds its part of tp x pp of the model."""
    from ds_configs.buckets import bucket_sizes
    from ds_configs.generate.sections import ELEMENT_BYTES
    from ds_configs.measured_links import MeasuredLinks
    from ds_configs.models import find_or_size

    if "model" in given and "params" in given:
        raise DsConfigError("--model and --params both say the size of the model; give one of them")
    shape = find_or_size(given.get("model"), given.get("params"), None)
    degrees = [fields.get(axis, 1) for axis in ("tp", "pp")]
    if not all(isinstance(degree, int) and degree > 0 for degree in degrees):
        raise DsConfigError(f"tp and pp are {degrees}; give whole numbers of ranks, 1 or more")
    precision = fields.get("precision", "auto")
    if precision == "auto" and fields.get("target") == "deepspeed":
        precision = "bf16"
    if precision not in ELEMENT_BYTES:
        raise DsConfigError(f"precision is {precision!r}; take one of {', '.join(ELEMENT_BYTES)}")
    overlap = (fields.get("zero") or {}).get("overlap_comm", False)  # as in tables.json
    return bucket_sizes(
        MeasuredLinks.from_file(Path(given["links"])),
        stage=fields.get("stage", 0),
        parameters=shape.parameters() // (degrees[0] * degrees[1]),
        element_bytes=ELEMENT_BYTES[precision],
        overlap=bool(overlap),
    )


def _name_and_pairs(fields: dict[str, Any], name: str, words: list[str]) -> None:
    """Set field ``name`` and its parameters; those of the preset hold on while the name stays the same."""
    offloads = name.startswith("offload")
    chosen = words[0] if offloads or words[0].lower() != "none" else None
    before = fields.get(name, DEFAULT_NAMES.get(name))
    kept = fields.get(f"{name}_params", {}) if str(chosen).lower() == str(before).lower() else {}
    fields[name] = chosen
    fields[f"{name}_params"] = {**kept, **_pairs(name, words[1:])}


def _pairs(name: str, words: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key or not text:
            raise DsConfigError(f"{_option(name)} {word} is no {PAIRS}; write the key, = and its value")
        if key in values:
            raise DsConfigError(f"{_option(name)} {key} is given twice; give it once")
        values[key] = [_value(part) for part in text.split(",")] if "," in text else _value(text)
    return values


def _value(text: str) -> Any:
    """Return ``text`` as JSON reads it, or as it is: 2e8 is a number, true a truth value, linear a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
