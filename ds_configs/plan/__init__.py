"""The planner: which strategy trains a model fastest on given cards among those that fit."""

from ds_configs.plan.candidates import Candidate
from ds_configs.plan.config import ds_config, launch_command
from ds_configs.plan.mend import nearest_miss
from ds_configs.plan.report import to_data, to_text
from ds_configs.plan.request import PlanRequest
from ds_configs.plan.search import Miss, Plan, Proposal, plan

__all__ = [
    "Candidate",
    "Miss",
    "Plan",
    "PlanRequest",
    "Proposal",
    "ds_config",
    "launch_command",
    "nearest_miss",
    "plan",
    "to_data",
    "to_text",
]
