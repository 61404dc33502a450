"""Megatron's ``mpu`` getters, which DeepSpeed asks for ranks and groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch.distributed as dist


class MegatronGetters(ABC):
    """The getters that DeepSpeed 0.19 and Megatron-style models call, answered from a mesh.

    Groups here are never None, for DeepSpeed takes None for the whole world: an axis of size 1 has a group of
    one rank. "Model parallel" is ``tp`` × ``pp``, "slice" and "tensor model parallel" are ``tp``, as in
    DeepSpeed's own grid. The getters of Ulysses sequence parallelism are left out on purpose: where they are
    missing, DeepSpeed takes its degree for 1, which is so; and ``initialize_sequence_parallel`` would make
    DeepSpeed ignore the rest.
    """

    _groups: Mapping[str, dist.ProcessGroup]

    @abstractmethod
    def size(self, axis: str) -> int:
        """Return the number of ranks along `axis`."""

    @abstractmethod
    def rank(self, axis: str) -> int:
        """Return this rank's place along `axis`."""

    @abstractmethod
    def ranks(self, axis: str) -> tuple[int, ...]:
        """Return the global ranks of this rank's group along `axis`."""

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        """Return this rank's group of one copy of the model: tp × pp."""
        return self._groups["model"]

    def get_model_parallel_world_size(self) -> int:
        """Return the size of that group."""
        return self.size("model")

    def get_model_parallel_rank(self) -> int:
        """Return this rank's place in that group."""
        return self.rank("model")

    def get_model_parallel_src_rank(self) -> int:
        """Return the global rank of that group's first member."""
        return self.ranks("model")[0]

    def get_tensor_model_parallel_group(self) -> dist.ProcessGroup:
        """Return this rank's group of each matrix."""
        return self._groups["tp"]

    def get_tensor_model_parallel_world_size(self) -> int:
        """Return the size of that group."""
        return self.size("tp")

    def get_tensor_model_parallel_rank(self) -> int:
        """Return this rank's place in that group."""
        return self.rank("tp")

    def get_tensor_model_parallel_src_rank(self) -> int:
        """Return the global rank of that group's first member."""
        return self.ranks("tp")[0]

    def get_slice_parallel_group(self) -> dist.ProcessGroup:
        """Return this rank's group of each matrix, by DeepSpeed's older name."""
        return self._groups["tp"]

    def get_slice_parallel_world_size(self) -> int:
        """Return the size of that group."""
        return self.size("tp")

    def get_slice_parallel_rank(self) -> int:
        """Return this rank's place in that group."""
        return self.rank("tp")

    def get_slice_parallel_src_rank(self) -> int:
        """Return the global rank of that group's first member."""
        return self.ranks("tp")[0]

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        """Return this rank's group of the replicas."""
        return self._groups["dp"]

    def get_data_parallel_world_size(self) -> int:
        """Return the size of that group."""
        return self.size("dp")

    def get_data_parallel_rank(self) -> int:
        """Return this rank's place in that group."""
        return self.rank("dp")

    def get_data_parallel_src_rank(self) -> int:
        """Return the global rank of that group's first member."""
        return self.ranks("dp")[0]

    def get_pipe_parallel_group(self) -> dist.ProcessGroup:
        """Return this rank's group of the stages, by DeepSpeed's name."""
        return self._groups["pp"]

    def get_pipe_parallel_world_size(self) -> int:
        """Return the size of that group."""
        return self.size("pp")

    def get_pipe_parallel_rank(self) -> int:
        """Return this rank's place in that group."""
        return self.rank("pp")

    def get_pipe_parallel_src_rank(self) -> int:
        """Return the global rank of that group's first member."""
        return self.ranks("pp")[0]

    def get_pipeline_model_parallel_group(self) -> dist.ProcessGroup:
        """Return this rank's group of the stages, by Megatron's name."""
        return self._groups["pp"]

    def get_pipeline_model_parallel_world_size(self) -> int:
        """Return the size of that group."""
        return self.size("pp")

    def get_pipeline_model_parallel_rank(self) -> int:
        """Return this rank's place in that group."""
        return self.rank("pp")

    def get_pipeline_model_parallel_src_rank(self) -> int:
        """Return the global rank of that group's first member."""
        return self.ranks("pp")[0]

    def get_data_parallel_group_ranks(self) -> list[int]:
        """Return the global ranks of this rank's data-parallel group."""
        return list(self.ranks("dp"))
