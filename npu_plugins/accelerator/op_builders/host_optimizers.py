"""Optimizers that run on the host, for ZeRO-Offload."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Any

from npu_plugins.accelerator.environment import is_first_local_rank
from npu_plugins.accelerator.host_build import HostBuildError
from npu_plugins.accelerator.kernels.host_adagrad import HostAdagrad
from npu_plugins.accelerator.kernels.host_adam import HostAdam
from npu_plugins.accelerator.kernels.host_lion import HostLion
from npu_plugins.accelerator.op_builders import builder

logger = logging.getLogger(__name__)


class HostOptimizer(builder.HostOp):
    """A compiled optimizer with a torch implementation to fall back on."""

    def include_paths(self) -> list[str]:
        """Directories of headers, relative to DeepSpeed's package of ops."""
        return ["csrc/includes"]

    def is_compatible(self, verbose: bool = False) -> bool:
        """True: without a compiler the fallback serves."""
        return True

    @abstractmethod
    def fallback(self) -> Any:
        """The torch implementation, with the functions of the compiled one."""

    def jit_load(self, verbose: bool = False) -> Any:
        """The compiled op; where it cannot be compiled, a warning and the torch implementation."""
        try:
            return super().jit_load(verbose)
        except HostBuildError as error:
            if is_first_local_rank():
                logger.warning("%s runs as torch operations, slowly but equally. %s", self.NAME, error)
            module = self.fallback()
            builder.OpBuilder._loaded_ops[self.name] = module
            return module


class CPUAdamBuilder(HostOptimizer):
    """Adam and AdamW on the host."""

    BUILD_VAR = "DS_BUILD_CPU_ADAM"
    NAME = "cpu_adam"

    def sources(self) -> list[str]:
        """The implementation first: the binding needs nothing of it but the header."""
        return ["csrc/adam/cpu_adam_impl.cpp", "csrc/adam/cpu_adam.cpp"]

    def fallback(self) -> HostAdam:
        """Adam as torch operations."""
        return HostAdam()


class CPUAdagradBuilder(HostOptimizer):
    """Adagrad on the host."""

    BUILD_VAR = "DS_BUILD_CPU_ADAGRAD"
    NAME = "cpu_adagrad"

    def sources(self) -> list[str]:
        """One file."""
        return ["csrc/adagrad/cpu_adagrad.cpp"]

    def fallback(self) -> HostAdagrad:
        """Adagrad as torch operations."""
        return HostAdagrad()


class CPULionBuilder(HostOptimizer):
    """Lion on the host."""

    BUILD_VAR = "DS_BUILD_CPU_LION"
    NAME = "cpu_lion"

    def sources(self) -> list[str]:
        """The implementation first: the binding needs nothing of it but the header."""
        return ["csrc/lion/cpu_lion_impl.cpp", "csrc/lion/cpu_lion.cpp"]

    def fallback(self) -> HostLion:
        """Lion as torch operations."""
        return HostLion()
