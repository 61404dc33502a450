"""Throughput: how long a training step takes, from the model's sizes and the hardware's figures."""

from ds_configs.throughput.efficiency import Efficiency, load_efficiency
from ds_configs.throughput.job import Attention, Offload, Recomputation, Schedule, TrainingJob
from ds_configs.throughput.step import StepTime, step_time

__all__ = [
    "Attention",
    "Efficiency",
    "Offload",
    "Recomputation",
    "Schedule",
    "StepTime",
    "TrainingJob",
    "load_efficiency",
    "step_time",
]
