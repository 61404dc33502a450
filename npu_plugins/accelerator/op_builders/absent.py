"""The builder of whatever has no implementation on NPUs."""

from __future__ import annotations

from functools import cache
from typing import NoReturn

from npu_plugins.accelerator.op_builders import builder
from npu_plugins.errors import NpuPluginsError


class NotImplementedBuilder(builder.PythonOp):
    """Reports its op as incompatible and raises, naming the op, when it is loaded."""

    BUILD_VAR = "DS_BUILD_NOT_IMPLEMENTED"
    NAME = "deepspeed_not_implemented"
    REQUESTED = "an op without a name"

    @classmethod
    @cache
    def of(cls, class_name: str) -> type[NotImplementedBuilder]:
        """The subclass that speaks for the builder DeepSpeed asked for."""
        namespace = {"REQUESTED": class_name.removesuffix("Builder"), "__module__": cls.__module__}
        return type(class_name, (cls,), namespace)

    def is_compatible(self, verbose: bool = False) -> bool:
        """False."""
        return False

    def load(self, verbose: bool = True) -> NoReturn:
        """Raise, naming the op."""
        raise NpuPluginsError(
            f"DeepSpeed's {self.REQUESTED} op has no NPU implementation: turn off the feature that asks for "
            "it, or set DS_ACCELERATOR=cpu to run without NPUs."
        )
