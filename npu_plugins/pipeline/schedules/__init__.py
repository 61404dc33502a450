"""Pipeline schedules as data: generated, completed, validated, simulated and drawn without torch."""

from npu_plugins.pipeline.errors import PipelineError, ScheduleError
from npu_plugins.pipeline.schedules.actions import Action, Exchange, Kind, Step, format_steps, parse_steps
from npu_plugins.pipeline.schedules.communication import add_communication
from npu_plugins.pipeline.schedules.one_f_one_b import one_f_one_b
from npu_plugins.pipeline.schedules.schedule import Placement, Schedule, loop, vee
from npu_plugins.pipeline.schedules.simulate import Costs, Simulation, Span, simulate

__all__ = [
    "Action",
    "Costs",
    "Exchange",
    "Kind",
    "PipelineError",
    "Placement",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "Span",
    "Step",
    "add_communication",
    "format_steps",
    "loop",
    "one_f_one_b",
    "parse_steps",
    "simulate",
    "vee",
]
