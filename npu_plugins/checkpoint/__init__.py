"""Checkpoints of sharded models: Hugging Face directories in and out, each rank reads its own share."""

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import CheckpointFiles, StoredTensor

__all__ = ["CheckpointError", "CheckpointFiles", "StoredTensor"]
