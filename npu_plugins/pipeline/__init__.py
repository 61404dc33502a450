"""Pipeline parallelism: schedules as data, and the engine that runs them.

Nothing is imported until it is asked for, so that `npu_plugins.pipeline.schedules` can be had without torch.
"""

from typing import Any

__all__ = ["SplitModel", "hf_names", "split_model"]


def __getattr__(name: str) -> Any:
    """Import what needs transformers when it is asked for."""
    if name in __all__:
        from npu_plugins.pipeline import hf

        return getattr(hf, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
