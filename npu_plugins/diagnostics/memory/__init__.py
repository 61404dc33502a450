"""How much memory of its device each rank of a job takes, for what, and why some take more."""

from npu_plugins.diagnostics.memory.balance import Imbalance, imbalances
from npu_plugins.diagnostics.memory.measure import measure_memory, memory_of_all
from npu_plugins.diagnostics.memory.rank import RankMemory
from npu_plugins.diagnostics.memory.report import memory_report

__all__ = ["Imbalance", "RankMemory", "imbalances", "measure_memory", "memory_of_all", "memory_report"]
