"""What a rank alone has to go on from: the states of its random generators, and its part of a mean loss."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hf_integration.errors import TrainingInputError

FORMAT = "npu_plugins.rng"


class UnloggedLoss(NamedTuple):
    """The loss of the steps since the last entry of the log, which the next entry is the mean of."""

    total: float
    """This rank's, added up."""
    since_step: int
    """The step of the last entry."""


def file_name(rank: int, world_size: int) -> str:
    """Return the name that transformers' Trainer gives the file of a rank."""
    return "rng_state.pth" if world_size <= 1 else f"rng_state_{rank}.pth"


def save_rank(file: Path, device: torch.device, loss: UnloggedLoss) -> None:
    """Save the states of Python's, NumPy's and torch's generators, of this rank's device, and the loss.

    The Trainer of transformers 5.24 saves those of all devices that a rank sees, for which each rank starts
    every device of its node.

    Args:
        file: to write.
        device: the rank's; the CPU has no second generator.
        loss: what the Trainer has not logged yet.
    """
    name, keys, *rest = np.random.get_state()
    state = {
        "format": FORMAT,
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "cpu": torch.get_rng_state(),
        "loss": tuple(loss),
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    torch.save(state, file)


def load_generators(file: Path, device: torch.device) -> None:
    """Put back the states of the generators that `save_rank` saved.

    Args:
        file: to read; nothing in it is unpickled but tensors and plain values.
        device: the rank's. A checkpoint from another kind of device leaves its generator as it is.

    Raises:
        TrainingInputError: the file cannot be read.
    """
    state = _read(file)
    name, keys, *rest = state["numpy"]
    random.setstate(_tuples(state["python"]))
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)


def load_loss(file: Path) -> UnloggedLoss:
    """Return the loss that `save_rank` saved.

    Raises:
        TrainingInputError: the file cannot be read.
    """
    total, since_step = _read(file)["loss"]
    return UnloggedLoss(float(total), int(since_step))


def _read(file: Path) -> dict[str, Any]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        if state["format"] == FORMAT:
            return state
        problem = f"is of the format {state['format']!r}, not {FORMAT!r}"
    except FileNotFoundError:
        problem = "is missing, without which dropout would go on differently"
    except Exception as error:  # torch.load raises what it likes for a damaged file
        problem = f"cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    raise TrainingInputError(f"{file} {problem}; give another checkpoint")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, (list, tuple)) else value
