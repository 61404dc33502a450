"""Single files of a checkpoint, and the ranks that save or load them.

DeepSpeed 0.19.8 reads files with ``torch.load(weights_only=False)``, which runs whatever a file asks for.
Here `read_torch` reads, which builds tensors and plain values; and every file is read so right after it was
written, so that nothing is saved that could not be loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.ranks import Ranks
from npu_plugins.checkpoint.torch_files import read_torch


class ReadableFiles(TorchCheckpointEngine):
    """DeepSpeed's checkpoint engine, which reads what it wrote, and unpickles little."""

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file.

        Raises:
            CheckpointError: it holds something that could not be loaded.
        """
        super().save(state_dict, path)
        try:
            read_torch(Path(path))
        except CheckpointError as error:
            raise CheckpointError(
                f"what is saved could not be loaded: {error}; if it is of client_state, put plain values and "
                "tensors there"
            ) from error

    def load(self, path: str, map_location: Any = None) -> Any:
        """Return what a file holds; tensors are on the CPU whatever `map_location` says."""
        return read_torch(Path(path))


class ControlRanks(Ranks):
    """The ranks of a pipeline engine, which tell each other over the host."""

    def __init__(self, control: Any) -> None:
        """Take the connection, a `npu_plugins.pipeline.control.Control`."""
        super().__init__()
        self._control = control

    @property
    def rank(self) -> int:
        """This rank."""
        return dist.get_rank()

    @property
    def size(self) -> int:
        """How many there are."""
        return dist.get_world_size()

    def tell(self, value: Any) -> list[Any]:
        """Return every rank's value in the order of ranks; anything that JSON holds."""
        return [json.loads(text) for text in self._control.texts(json.dumps(value))]
