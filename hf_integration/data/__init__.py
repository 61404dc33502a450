"""What to train on: text or records in, batches for one replica out. Nothing here communicates."""

from hf_integration.data.arguments import DataArguments
from hf_integration.data.collator import Collator
from hf_integration.data.load import TrainingData, load_data
from hf_integration.data.packing import check_packing
from hf_integration.data.sampler import Replica, ReplicaBatchSampler, ReplicaLoader

__all__ = [
    "Collator",
    "DataArguments",
    "Replica",
    "ReplicaBatchSampler",
    "ReplicaLoader",
    "TrainingData",
    "check_packing",
    "load_data",
]
