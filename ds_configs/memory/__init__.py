"""Memory of a training job on one NPU and its host, by term: ``estimate(MemoryJob(...))``."""

from ds_configs.memory.estimate import estimate
from ds_configs.memory.job import Buckets, MemoryJob
from ds_configs.memory.result import MemoryEstimate, StageEstimate

__all__ = ["Buckets", "MemoryEstimate", "MemoryJob", "StageEstimate", "estimate"]
