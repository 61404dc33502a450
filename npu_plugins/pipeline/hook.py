"""Lets `deepspeed.initialize` make our engine for our `PipelineModule`.

`deepspeed.initialize` (0.19.8, deepspeed/__init__.py:586) looks up the name ``PipelineEngine`` in its own
module when it is called. That name is given to a class that makes one or the other engine by the model, and
answers for DeepSpeed's in all other ways. No class of DeepSpeed's is changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def install(deepspeed: ModuleType) -> None:
    """Give DeepSpeed's module the choosing class; a second call does nothing."""
    stock = vars(deepspeed)["PipelineEngine"]
    if not getattr(stock, "chooses_by_model", False):
        vars(deepspeed)["PipelineEngine"] = _chooser(stock)


def initialize(*args: Any, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
    """Call `deepspeed.initialize`, which returns our engine for our `PipelineModule`.

    Returns:
        (engine, optimizer, training dataloader, learning-rate scheduler).

    Raises:
        PipelineError: the configuration asks for stages, but the model has none; DeepSpeed 0.19.8 trains it
            without them and says nothing.
    """
    import deepspeed

    install(deepspeed)
    given = inspect.signature(deepspeed.initialize).bind_partial(*args, **kwargs).arguments
    config = given.get("config") or getattr(given.get("args"), "deepspeed_config", None)
    _check_model(given.get("model"), given.get("config_params") or config)
    return deepspeed.initialize(*args, **kwargs)


def _check_model(model: Any, config: Any) -> None:
    from deepspeed.runtime.pipe.module import PipelineModule

    from npu_plugins.pipeline.config import PipelineConfig
    from npu_plugins.pipeline.errors import PipelineError

    readable = isinstance(config, Mapping) or (isinstance(config, (str, Path)) and Path(config).is_file())
    if not readable or isinstance(model, PipelineModule):
        return  # DeepSpeed says what is wrong with another configuration
    stages = PipelineConfig.from_ds_config(config).stages
    if stages not in (None, 1):
        raise PipelineError(
            f"pipeline.stages is {stages} in the configuration, but a {type(model).__name__} is no "
            "PipelineModule and would be trained whole on each rank; make one of layers, or of a Hugging "
            "Face model with split_model, or leave the section out"
        )


def _chooser(stock: type) -> type:
    class ByModel(type(stock)):  # type: ignore[misc]  # the metaclass of whatever DeepSpeed has there
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not chooser:
                return super().__call__(*args, **kwargs)
            from npu_plugins.pipeline.engine import PipelineEngine
            from npu_plugins.pipeline.module import PipelineModule

            ours = isinstance(kwargs.get("model"), PipelineModule)
            return (PipelineEngine if ours else stock)(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, stock) if cls is chooser else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, stock) if cls is chooser else super().__subclasscheck__(subclass)

    chooser = ByModel(stock.__name__, (stock,), {"__doc__": stock.__doc__, "chooses_by_model": True})
    return chooser
