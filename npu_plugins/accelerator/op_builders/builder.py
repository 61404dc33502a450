"""What the builders of this package share.

DeepSpeed takes every name that ends in `Builder` in a module here for an op, except in this module.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from deepspeed.ops.op_builder.builder import OpBuilder

from npu_plugins.accelerator.host_build import HostExtension, build, compiler_version
from npu_plugins.errors import NpuPluginsError


class HostOp(OpBuilder):
    """An op of DeepSpeed's C++ sources compiled for the host alone: neither CANN nor an NPU is needed."""

    NAME: str
    APART: tuple[str, ...] = ()  # sources that do not compile in one unit with the others

    def __init__(self) -> None:
        super().__init__(name=self.NAME)

    def absolute_name(self) -> str:
        """Where a build made at installation would lie."""
        return f"deepspeed.ops.{self.NAME}_op"

    def cxx_args(self) -> list[str]:
        """Flags for this processor; no debug information, which costs a third of the compile time."""
        return ["-O3", "-Wno-reorder", "-fopenmp", self.cpu_arch(), self.simd_width()]

    def extra_ldflags(self) -> list[str]:
        """Linker flags."""
        return ["-fopenmp"]

    def is_compatible(self, verbose: bool = False) -> bool:
        """True where a C++ compiler runs."""
        try:
            compiler_version()
        except NpuPluginsError as error:
            self.error_log = str(error)
            if verbose:
                self.warning(str(error))
            return False
        return True

    def jit_load(self, verbose: bool = False) -> Any:
        """Compile, or take from the cache; raises HostBuildError."""
        extension = HostExtension(
            name=self.NAME,
            sources=tuple(self._absolute(path) for path in self.sources() if path not in self.APART),
            include_dirs=tuple(self._absolute(path) for path in self.include_paths()),
            flags=(*self.strip_empty_entries(self.cxx_args()), "-UC10_USE_GLOG"),
            libraries=tuple(self.extra_ldflags()),
            apart=tuple(self._absolute(path) for path in self.APART),
        )
        module = build(extension, verbose)
        OpBuilder._loaded_ops[self.name] = module
        return module

    def _absolute(self, path: str) -> Path:
        return Path(self.deepspeed_src_path(path)).resolve()


class PythonOp(OpBuilder):
    """An op that is Python over torch and torch_npu: there is nothing to compile."""

    NAME: str

    def __init__(self) -> None:
        super().__init__(name=self.NAME)

    def absolute_name(self) -> str:
        """Name of the op in DeepSpeed's reports."""
        return f"deepspeed.ops.{self.NAME}_op"

    def sources(self) -> list[str]:
        """None."""
        return []

    @abstractmethod
    def load(self, verbose: bool = True) -> Any:
        """The object with the op's functions."""
