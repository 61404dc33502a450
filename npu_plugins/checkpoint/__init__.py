"""Checkpoints: Hugging Face directories in and out of sharded models, and a run's periodic states.

- `load_sharded`, `save_hf`: weights of a model divided over ranks, each rank reading its own share;
- `save_checkpoint`, `latest_good`, `find_faults`, `Manifest`: a run's periodic checkpoints.
"""

from npu_plugins.checkpoint.atomic import Checkpoint, find_faults, latest_good, rotate, save_checkpoint
from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import CheckpointFiles, StoredTensor
from npu_plugins.checkpoint.load import load_sharded
from npu_plugins.checkpoint.manifest import Layout, Manifest, model_digest
from npu_plugins.checkpoint.save import save_hf

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointFiles",
    "Layout",
    "Manifest",
    "StoredTensor",
    "find_faults",
    "latest_good",
    "load_sharded",
    "model_digest",
    "rotate",
    "save_checkpoint",
    "save_hf",
]
