"""The measured timeline of a step, written where the configuration says."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from npu_plugins.pipeline.control import Control
from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.schedules import Span
from npu_plugins.pipeline.schedules.chrome_trace import chrome_trace


def write_trace(path: Path, spans: Sequence[Span]) -> None:
    """Write spans as a Chrome trace that begins at 0.

    Their times are seconds of the hosts' wall clocks, which agree between hosts as well as NTP keeps them.
    """
    origin = min((span.start for span in spans), default=0.0)
    moved = [span._replace(start=span.start - origin, end=span.end - origin) for span in spans]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(chrome_trace(moved), encoding="utf-8")


def check_writable(path: Path, control: Control) -> None:
    """Refuse a place where global rank 0 could not write a trace when the step has been run.

    Raises:
        PipelineError: on every rank.
    """
    problem = ""
    if dist.get_rank() == 0:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                problem = "Is a directory" if path.is_dir() else ""
        except OSError as error:
            problem = str(error.strerror)
    problem = control.texts(problem)[0]
    if problem:
        raise PipelineError(
            f"pipeline.trace_file is {str(path)!r}, which rank 0 cannot write: {problem}; give a file in a "
            "folder that can be written"
        )
