"""What a model that is split must not have, or has switched on."""

from __future__ import annotations

from typing import Any

from torch import nn

from npu_plugins.pipeline.errors import PipelineError


def is_checkpointing(model: nn.Module) -> bool:
    """Return whether transformers' own activation checkpointing is on in any layer."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def stop_checkpointing(model: nn.Module) -> None:
    """Switch it off, since stages recompute their layers themselves."""
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = False


def check_like(model: Any, skeleton: nn.Module) -> None:
    """Refuse a model that was changed after its configuration built it: the stages would not have the change.

    Raises:
        PipelineError: naming what differs.
    """
    found = {name: type(module) for name, module in model.named_modules()}
    wanted = {name: type(module) for name, module in skeleton.named_modules()}
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters(remove_duplicate=False)}
    expected = {name: tuple(each.shape) for name, each in skeleton.named_parameters(remove_duplicate=False)}
    for what, these, those in (("module", found, wanted), ("parameter", shapes, expected)):
        for name in {**these, **those}:
            if these.get(name) != those.get(name):
                raise PipelineError(
                    f"{what} {name} of {type(model).__name__} is {_told(these.get(name))}, but its "
                    f"configuration makes {_told(those.get(name))}; split_model builds the stages from the "
                    "configuration: change that, or split first and change the stages"
                )
    allowed = model.get_input_embeddings() if is_checkpointing(model) else None
    for name, module in model.named_modules():
        if module is allowed:  # transformers hooks it for reentrant checkpoints; ours need none
            continue
        if module._forward_hooks or module._forward_pre_hooks:
            raise PipelineError(
                f"module {name or type(model).__name__} has forward hooks, which the stages would not have; "
                "split first and put hooks on the stages"
            )


def _told(value: Any) -> str:
    if value is None:
        return "absent"
    return value.__name__ if isinstance(value, type) else f"of shape {list(value)}"
