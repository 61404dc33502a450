"""The section ``pipeline`` of a DeepSpeed configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.schedules.registry import TRAINING_SCHEDULES, chunks_of

_DEEPSPEED_ONLY = ("activation_checkpoint_interval", "use_reentrant", "pipe_partitioned", "grad_partitioned")


@dataclass(frozen=True)
class PipelineConfig:
    """How the layers are divided and in which order a rank works; ``"auto"`` means the default everywhere.

    Raises:
        PipelineError: a value is none of its choices.
    """

    stages: int | None = None
    """Ranks of the pipeline (p). None: as the module says."""
    schedule: str = "1f1b"
    """gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipe-v."""
    virtual_stages: int | None = None
    """Stages on each rank (v). None: what the schedule has, 2 for interleaved, zb-v and dualpipe-v."""
    partition: str | tuple[int, ...] = "parameters"
    """Where the model is cut: uniform (equally many layers), parameters, type:REGEX (equally many layers of a
    matching class), time (measured on a sample input), or the number of layers of each stage."""
    recomputation: str | int = "none"
    """none, full (each layer), or how many layers are recomputed together from one kept input."""
    seed_layers: bool = False
    """Whether each layer is built and run under a seed of its own."""
    dynamic_shape: bool = False
    """Whether activations' shapes depend on more than the shapes of the micro-batch, and are always sent."""
    trace_steps: tuple[int, ...] = ()
    """Steps, counted from 1, whose measured timeline is written."""
    trace_file: str = "pipeline-trace-{step}.json"
    """Where: a Chrome trace, written by global rank 0; ``{step}`` is replaced."""
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """Names that the user gave."""

    def __post_init__(self) -> None:
        if self.schedule not in TRAINING_SCHEDULES:
            _refuse("schedule", self.schedule, f"choose one of {', '.join(TRAINING_SCHEDULES)}")
        for name in ("stages", "virtual_stages"):
            _check_count(name, getattr(self, name), 1, optional=True)
        chunks_of(self.schedule, self.virtual_stages)
        if isinstance(self.partition, tuple):
            for count in self.partition:
                _check_count("partition", count, 1)
        elif self.partition not in ("uniform", "parameters", "time") and not _is_class(self.partition):
            mend = "choose uniform, parameters, type:REGEX, time, or a list with the layers of each stage"
            _refuse("partition", self.partition, mend)
        if isinstance(self.recomputation, str):
            if self.recomputation not in ("none", "full"):
                _refuse("recomputation", self.recomputation, "choose none, full, or a number of layers")
        else:
            _check_count("recomputation", self.recomputation, 0)
        for name in ("seed_layers", "dynamic_shape"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, getattr(self, name), "give true or false")
        if not isinstance(self.trace_steps, tuple):
            _refuse("trace_steps", self.trace_steps, "give a step, counted from 1, or a list of them")
        for step in self.trace_steps:
            _check_count("trace_steps", step, 1)
        if not isinstance(self.trace_file, str) or re.sub("{step}", "", self.trace_file).strip("/. ") == "":
            _refuse("trace_file", self.trace_file, "give the path of a file, in which {step} is replaced")
        if re.search("[{}]", self.trace_file.replace("{step}", "")):
            _refuse("trace_file", self.trace_file, "the only thing that is replaced in it is {step}")
        if len(set(self.trace_steps)) > 1 and "{step}" not in self.trace_file:
            mend = (
                f"the traces of steps {list(self.trace_steps)} would replace each other; put {{step}} in it"
            )
            _refuse("trace_file", self.trace_file, mend)

    @property
    def recomputed_layers(self) -> int:
        """Layers of one recomputed block; 0 for none."""
        if isinstance(self.recomputation, str):
            return {"none": 0, "full": 1}[self.recomputation]
        return self.recomputation

    @classmethod
    def from_ds_config(cls, config: Mapping[str, Any] | str | Path | None) -> PipelineConfig:
        """Read the section ``pipeline`` of a configuration, or of its file.

        Raises:
            PipelineError: a key is unknown or of DeepSpeed's that this engine cannot follow, or a value is
                refused.
        """
        if config is None:
            return cls()
        if isinstance(config, Mapping):
            section = config.get("pipeline", {})
        else:
            from deepspeed import load_ds_config  # the reader of deepspeed.initialize: Hjson, no duplicates

            section = load_ds_config(str(config)).get("pipeline", {})
        if not isinstance(section, Mapping):
            raise PipelineError(
                f"pipeline is {section!r} in the DeepSpeed configuration; give a section {{…}}"
            )
        values = {key: value for key, value in section.items() if value != "auto"}
        _check_keys(values)
        _take_deepspeed_keys(values)
        for name in ("partition", "trace_steps"):
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])
        if isinstance(values.get("trace_steps"), int):
            values["trace_steps"] = (values["trace_steps"],)
        return cls(**values, given=frozenset(values))


def _check_keys(values: Mapping[str, Any]) -> None:
    known = [each.name for each in fields(PipelineConfig) if each.name != "given"]
    for key in values:
        if key not in known and key not in _DEEPSPEED_ONLY:
            near = difflib.get_close_matches(key, known, 1)
            mend = f"did you mean {near[0]}?" if near else f"its keys are {', '.join(known)}"
            raise PipelineError(f"pipeline.{key} is no key of the DeepSpeed configuration; {mend}")


def _take_deepspeed_keys(values: dict[str, Any]) -> None:
    """Turn DeepSpeed's own keys into ours, or refuse what this engine does not do."""
    for key in ("pipe_partitioned", "grad_partitioned"):
        if values.pop(key, False) is not False:
            raise PipelineError(
                f"pipeline.{key} would divide activations between tensor-parallel ranks for sending, which "
                "this engine does not do; leave it out, and let sequence_parallel divide them"
            )
    if (reentrant := values.pop("use_reentrant", False)) is not False:
        raise PipelineError(
            f"pipeline.use_reentrant is {reentrant!r}, but reentrant checkpointing loses gradients of layers "
            'whose inputs are integers; leave it out and use "recomputation": "full"'
        )
    if "activation_checkpoint_interval" in values:
        interval = values.pop("activation_checkpoint_interval")
        _check_count("activation_checkpoint_interval", interval, 0)
        other = values.get("recomputation", interval)
        named = {"none": 0, "full": 1}.get(other, other) if isinstance(other, str) else other
        if named != interval:
            raise PipelineError(
                f"pipeline.activation_checkpoint_interval is {interval} and recomputation is {other!r}; "
                "they are two names of one thing: give recomputation alone"
            )
        values["recomputation"] = interval


def _is_class(partition: Any) -> bool:
    return isinstance(partition, str) and partition.startswith("type:")


def _check_count(name: str, value: Any, least: int, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        _refuse(name, value, f"give a whole number, {least} or more")


def _refuse(name: str, value: Any, mend: str) -> None:
    raise PipelineError(f"pipeline.{name} is {value!r}; {mend}")
