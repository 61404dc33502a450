"""Checkpoints of sharded models: Hugging Face directories in and out, each rank reads its own share."""

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import CheckpointFiles, StoredTensor
from npu_plugins.checkpoint.load import load_sharded
from npu_plugins.checkpoint.save import save_hf

__all__ = ["CheckpointError", "CheckpointFiles", "StoredTensor", "load_sharded", "save_hf"]
