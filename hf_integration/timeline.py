"""The measured timeline of one training step of a pipeline, drawn as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_integration.device import platform_label, ranks_in_words
from hf_integration.errors import TrainingInputError
from npu_plugins.pipeline.schedules import Span
from npu_plugins.pipeline.schedules.chrome_trace import parse_chrome_trace
from npu_plugins.pipeline.schedules.schedule import Placement
from npu_plugins.pipeline.schedules.svg import COLOURS, WORDS
from npu_plugins.pipeline.schedules.timeline import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRACE_NAME, PICTURE_NAME = "pipeline-timeline.json", "pipeline-timeline.png"
WIDTH, DPI = 14.0, 110
"""Of the picture, in inches and points an inch."""
LETTER = 7.0
"""Width of a letter of a bar's label, in points of the picture."""
BAR = 0.8
"""Height of a bar; rows are 1 apart."""


class MeasuredTimeline(TrainerCallback):
    """Draws the timeline of one step as soon as the engine has written its trace.

    Raises:
        TrainingInputError: when training begins, if that step will not be trained.
    """

    def __init__(self, step: int, folder: Path, title: str) -> None:
        """Take the optimizer step, counted from 1, where its trace is, and what the picture is of."""
        self._step, self._folder, self._title = step, folder, title
        self._drawn = False

    @classmethod
    def of_run(cls, args: Any, model: str) -> MeasuredTimeline:
        """Return the one that `NpuTrainingArguments` ask for, of a model of the class named ``model``."""
        degrees = args.parallel_config
        ranks = ranks_in_words(degrees.world_size, platform_label(args.device.type))
        title = f"{model} at tp {degrees.tp} × pp {degrees.pp} × dp {degrees.dp} on {ranks}"
        return cls(args.pipeline_timeline, Path(args.output_dir), title)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse a step that is over, or that never comes."""
        if not self._drawn and not state.global_step < self._step <= state.max_steps:
            raise TrainingInputError(
                f"--pipeline_timeline is {self._step}, but this run trains the steps {state.global_step + 1} "
                f"to {state.max_steps}; give one of them"
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw it on the rank that has the trace."""
        if state.global_step != self._step or self._drawn:
            return
        self._drawn = True
        if state.is_world_process_zero:
            spans = parse_chrome_trace((self._folder / TRACE_NAME).read_text(encoding="utf-8"))
            plot_timeline(spans, self._folder / PICTURE_NAME, f"Step {self._step}, measured: {self._title}")


def placement_of(spans: Sequence[Span]) -> Placement:
    """Return where the stages are, seen from what ran where."""
    ranks = {span.action.stage: span.rank for span in spans}
    return Placement(tuple(ranks[stage] for stage in sorted(ranks)))


def idle_shares(spans: Sequence[Span], ranks: int) -> list[float]:
    """Return which share of the time from the first action to the last each rank computed nothing."""
    length = max(span.end for span in spans) - min(span.start for span in spans)
    busy = [sum(float(span.end - span.start) for span in spans if span.rank == rank) for rank in range(ranks)]
    return [1 - each / float(length) for each in busy]


def plot_timeline(spans: Sequence[Span], path: Path, title: str) -> Path:
    """Draw spans, whose times are seconds, into the PNG file ``path`` and return it.

    A row for each rank of the pipeline says how long that rank idled. A bar is an action, its label where it
    fits: ``F3`` the forward of micro-batch 3, with a letter for the rank's stage where it has several.
    """
    # Not above: most ranks draw nothing, and would start half a second later.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    placement = placement_of(spans)
    figure = Figure(figsize=(WIDTH, 1.6 + 0.7 * placement.ranks), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="milliseconds", title=title)
    _draw_bars(axes, spans, placement)
    idle = enumerate(idle_shares(spans, placement.ranks))
    axes.set_yticks(range(placement.ranks), [f"rank {rank}\nidle {share:.0%}" for rank, share in idle])
    axes.invert_yaxis()
    kinds = {span.action.kind for span in spans}
    patches = [Patch(color=COLOURS[kind][0], label=words) for kind, words in WORDS.items() if kind in kinds]
    axes.legend(
        handles=patches, loc="upper left", bbox_to_anchor=(0, -0.25), ncols=len(patches), frameon=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _draw_bars(axes: Axes, spans: Sequence[Span], placement: Placement) -> None:
    first = min(span.start for span in spans)
    length = max(span.end for span in spans) - first
    for span in spans:
        left, wide = float(span.start - first) * 1e3, float(span.end - span.start) * 1e3
        colour = COLOURS[span.action.kind][placement.chunk_of(span.action.stage) % 2]
        axes.barh(span.rank, wide, BAR, left, color=colour, edgecolor="white", linewidth=0.5)
        name = label(span, placement)
        if len(name) * LETTER <= float((span.end - span.start) / length) * (WIDTH - 1) * DPI:
            axes.text(left + wide / 2, span.rank, name, ha="center", va="center", fontsize=7)
    axes.set_xlim(0, float(length) * 1e3)
