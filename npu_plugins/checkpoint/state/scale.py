"""The dynamic loss scale of fp16, which DeepSpeed's optimizers and torch keep in different words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_plugins.checkpoint.state.trained import Trained


def scale_of(trained: Trained) -> dict[str, Any] | None:
    """Return the scale, and the steps since the last one that overflowed; None where none is dynamic."""
    kind, holder = _holder(trained)
    if kind == "torch":
        state = holder.state_dict()
        if not state:  # it is not enabled
            return None
        return {"scale": float(state["scale"]), "since_overflow": int(state["_growth_tracker"])}
    return None if kind is None else scale_of_deepspeed(holder)


def scale_of_deepspeed(holder: Any) -> dict[str, Any]:
    """Return the same of the object in which an optimizer of DeepSpeed's has its dynamic loss scale."""
    found = {
        "scale": float(holder.cur_scale),
        "since_overflow": int(holder.cur_iter - holder.last_overflow_iter - 1),
    }
    if hasattr(holder, "cur_hysteresis"):
        found["hysteresis"] = int(holder.cur_hysteresis)
    return found


def restore_scale(trained: Trained, saved: Mapping[str, Any] | None) -> None:
    """Go on with a dynamic loss scale; a static one is the configuration's."""
    kind, holder = _holder(trained)
    if saved is None or kind is None:
        return
    scale, since = float(saved["scale"]), int(saved["since_overflow"])
    if kind == "torch":
        state = holder.state_dict()
        if state:
            interval = int(state["growth_interval"])
            holder.load_state_dict({**state, "scale": scale, "_growth_tracker": since % interval})
        return
    holder.cur_scale = scale
    holder.cur_iter, holder.last_overflow_iter = since, -1
    if hasattr(holder, "cur_hysteresis"):
        holder.cur_hysteresis = int(saved.get("hysteresis", holder.cur_hysteresis))


def _holder(trained: Trained) -> tuple[str | None, Any]:
    """Return the kind of object that has the dynamic loss scale, torch or DeepSpeed; and that object."""
    scaler = trained.scaler
    for owner, name in (
        (trained.engine, "torch_autocast_z0_gradscaler"),
        (trained.optimizer, "torch_autocast_gradscaler"),
    ):
        scaler = getattr(owner, name, None) or scaler
    if scaler is not None:
        return "torch", scaler
    for name, dynamic in (("loss_scaler", "dynamic"), ("loss_scale_config", "dynamic_loss_scale")):
        holder = getattr(trained.optimizer, name, None)
        if getattr(holder, dynamic, False):
            return "deepspeed", holder
    return None, None
