"""Giving the model the weights that the optimizer's master weights round to, once these are loaded."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

from npu_plugins.checkpoint.state.trained import Trained


@torch.no_grad()
def tell_model(trained: Trained) -> None:
    """Bring the model's weights up to date; a collective of the replicas where ZeRO has divided something."""
    optimizer = trained.optimizer
    if isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        _tell_stage3(optimizer)
    elif not trained.is_replicated():
        optimizer.update_lp_params()
        # DeepSpeed links parameters and states at the first step; deepspeed.utils.safe_get_* need it now.
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    else:
        for piece in trained.pieces():
            if piece.holder is not piece.parameter:
                piece.parameter.copy_(piece.read(piece.holder).view_as(piece.parameter))


def _tell_stage3(optimizer: Any) -> None:
    """Copy the master partitions into the model's, and gather again what stays gathered.

    These are the steps of DeepSpeed's own load (0.19.8, `_rigid_load_state_dict`).
    """
    optimizer.checkpoint_event_prologue()
    for index, master in enumerate(optimizer.fp32_partitioned_groups_flat):
        flat = optimizer.fp16_partitioned_groups_flat[index]
        if flat is not master:
            flat.data.copy_(master.data)
        parts = optimizer.fp16_partitioned_groups[index]
        for part, value in zip(parts, optimizer.unflatten(flat, parts), strict=True):
            part.data = value.data
    optimizer.checkpoint_event_epilogue()
