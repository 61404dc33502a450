"""Pipeline schedules as data: generated, completed, validated, simulated and drawn without torch."""

from npu_plugins.pipeline.errors import PipelineError, ScheduleError
from npu_plugins.pipeline.schedules.actions import Action, Exchange, Kind, Step, format_steps, parse_steps
from npu_plugins.pipeline.schedules.communication import add_communication
from npu_plugins.pipeline.schedules.dualpipe_v import dualpipe_v
from npu_plugins.pipeline.schedules.evaluation import evaluation
from npu_plugins.pipeline.schedules.gpipe import gpipe
from npu_plugins.pipeline.schedules.interleaved import interleaved
from npu_plugins.pipeline.schedules.one_f_one_b import one_f_one_b
from npu_plugins.pipeline.schedules.registry import SCHEDULES, TRAINING_SCHEDULES, build_schedule, chunks_of
from npu_plugins.pipeline.schedules.schedule import Placement, Schedule, loop, vee
from npu_plugins.pipeline.schedules.simulate import Costs, Simulation, Span, simulate
from npu_plugins.pipeline.schedules.validate import Report, count_transfers, peak_activations, validate
from npu_plugins.pipeline.schedules.zb_h1 import zb_h1
from npu_plugins.pipeline.schedules.zb_v import zb_v

__all__ = [
    "Action",
    "Costs",
    "Exchange",
    "Kind",
    "PipelineError",
    "Placement",
    "Report",
    "SCHEDULES",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "Span",
    "Step",
    "TRAINING_SCHEDULES",
    "add_communication",
    "build_schedule",
    "chunks_of",
    "count_transfers",
    "dualpipe_v",
    "evaluation",
    "format_steps",
    "gpipe",
    "interleaved",
    "loop",
    "one_f_one_b",
    "parse_steps",
    "peak_activations",
    "simulate",
    "validate",
    "vee",
    "zb_h1",
    "zb_v",
]
