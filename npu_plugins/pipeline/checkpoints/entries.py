"""The saved state of single parameters, by name, from the forms in which DeepSpeed's optimizers save it.

All tensors are views of what was read: nothing is copied, nor read from the disk, before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from deepspeed.checkpoint.constants import (
    BASE_OPTIMIZER_STATE,
    BASE_OPTIMIZER_STATE_STEP,
    PARAM_SLICE_MAPPINGS,
    SINGLE_PARTITION_OF_FP32_GROUPS,
)

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.pipeline.checkpoints.places import NOT_SETTINGS

MASTER = "fp32"
"""The key of the master weight, by the name that universal checkpoints give it."""


@dataclass
class Entry:
    """What a checkpoint holds of one parameter on one tensor-parallel rank."""

    fragments: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """Flat pieces in order, by key: `MASTER` (if there is one besides the weight), exp_avg, …"""
    scalars: dict[str, Any] = field(default_factory=dict)
    """What is one number for the whole parameter: step."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The hyperparameters of its group."""

    def tensors(self) -> list[str]:
        """The keys under which there are tensors."""
        return list(self.fragments[0]) if self.fragments else []

    def flat(self, key: str) -> torch.Tensor:
        """Return all elements of one key."""
        pieces = [fragment[key] for fragment in self.fragments]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def partitioned(states: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Entry]:
    """Return the entries of `names` in what the replicas' ZeRO or bf16 optimizers saved, by replica.

    DeepSpeed writes where each parameter lies in a replica's flat tensors: that is all it takes.
    """
    found: dict[str, Entry] = {}
    for state in states:
        base = state[BASE_OPTIMIZER_STATE]
        by_group = base["state"] if isinstance(base, Mapping) else dict(enumerate(base))
        settings = base["param_groups"] if isinstance(base, Mapping) else [{}] * len(base)
        for group, addresses in enumerate(state[PARAM_SLICE_MAPPINGS]):
            values = by_group.get(group, {})
            if state.get(BASE_OPTIMIZER_STATE_STEP) is not None:
                values = {**values, "step": state[BASE_OPTIMIZER_STATE_STEP]}
            for name in names:
                address = addresses.get(name)
                if address is None:
                    continue
                entry = found.setdefault(name, Entry(settings=_settings(settings[group])))
                piece = slice(address.start, address.start + address.numel)
                fragment = {MASTER: state[SINGLE_PARTITION_OF_FP32_GROUPS][group][piece]}
                for key, value in values.items():
                    if _is_elementwise(value):
                        fragment[key] = value[piece]
                    else:
                        entry.scalars[key] = value
                entry.fragments.append(fragment)
    return found


def whole(
    state: Mapping[str, Any], groups: Sequence[Sequence[str]], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Entry]:
    """Return the entries of an optimizer that is not divided between replicas, saved by position.

    Args:
        state: what the optimizer's `state_dict` was: torch's own, or that of one of the fp16 optimizers.
        groups: the names of its parameters, in its order.
        shapes: of the parameters.

    Raises:
        CheckpointError: names and state do not belong together.
    """
    inner = state.get("optimizer_state_dict", state)
    if len(inner["param_groups"]) != len(groups):
        raise CheckpointError(
            f"the optimizer was saved with {len(inner['param_groups'])} parameter groups, but the checkpoint "
            f"names {len(groups)}; its files are of two saves"
        )
    found: dict[str, Entry] = {}
    for index, (names, saved) in enumerate(zip(groups, inner["param_groups"], strict=True)):
        values = [inner["state"].get(position, {}) for position in saved["params"]]
        if "fp32_groups_flat" in state:
            _flat_group(found, names, shapes, values[0], state["fp32_groups_flat"][index])
        else:
            masters = state["fp32_groups"][index] if "fp32_groups" in state else None
            _separate(found, names, values, masters)
        for name in names:
            found[name].settings = _settings(saved)
    return found


def _flat_group(
    found: dict[str, Entry],
    names: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Any],
    master: torch.Tensor,
) -> None:
    start = 0
    for name in names:
        piece = slice(start, start + torch.Size(shapes[name]).numel())
        start = piece.stop
        fragment = {MASTER: master.detach()[piece]}
        fragment |= {key: value[piece] for key, value in values.items() if _is_elementwise(value)}
        scalars = {key: value for key, value in values.items() if not _is_elementwise(value)}
        found[name] = Entry([fragment], scalars)
    if start != master.numel():
        raise CheckpointError(
            f"a group of the saved optimizer has {master.numel()} elements, but its parameters have {start}; "
            "the checkpoint's files are of two saves"
        )


def _separate(
    found: dict[str, Entry], names: Sequence[str], values: Sequence[Any], masters: Sequence[Any] | None
) -> None:
    if len(names) != len(values):
        raise CheckpointError(
            f"the optimizer was saved with {len(values)} parameters in a group, but the checkpoint names "
            f"{len(names)}; its files are of two saves"
        )
    for position, name in enumerate(names):
        fragment = {} if masters is None else {MASTER: masters[position].detach().reshape(-1)}
        entry = Entry([fragment])
        for key, value in values[position].items():
            if _is_elementwise(value):
                fragment[key] = value.reshape(-1)
            else:
                entry.scalars[key] = value
        found[name] = entry


def _is_elementwise(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in NOT_SETTINGS}


def loss_scale(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a saved optimizer tells of a dynamic loss scale; None if it had none."""
    scaler = state.get("loss_scaler")
    told = vars(scaler) if scaler is not None else state
    if not (told.get("dynamic") or told.get("dynamic_loss_scale")):
        return None
    return {key: told[key] for key in SCALE_KEYS if key in told}


SCALE_KEYS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What changes while a dynamic loss scale is used."""


def names_in(states: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the parameters that replicas' partitioned optimizers saved."""
    for state in states:
        for addresses in state[PARAM_SLICE_MAPPINGS]:
            yield from addresses
