"""The states of a rank's random generators, saved with a checkpoint and put back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.trainer_pt_utils import safe_globals

from hf_integration.errors import TrainingInputError

FORMAT = "npu_plugins.rng"


def file_name(rank: int, world_size: int) -> str:
    """Return the name that transformers' Trainer gives the file of a rank."""
    return "rng_state.pth" if world_size <= 1 else f"rng_state_{rank}.pth"


def save_rng(file: Path, device: torch.device) -> None:
    """Save the states of Python's, NumPy's and torch's generators, and of this rank's device.

    The Trainer of transformers 5.24 saves those of all devices that a rank sees, for which each rank starts
    every device of its node.

    Args:
        file: to write.
        device: the rank's; the CPU has no second generator.
    """
    name, keys, *rest = np.random.get_state()
    state = {
        "format": FORMAT,
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "cpu": torch.get_rng_state(),
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    torch.save(state, file)


def load_rng(file: Path, device: torch.device) -> bool:
    """Put back what `save_rng` saved.

    Args:
        file: to read; nothing in it is unpickled but tensors and plain values.
        device: the rank's. A checkpoint from another kind of device leaves its generator as it is.

    Returns:
        Whether the file is one of `save_rng`; one of transformers' Trainer is left to it.

    Raises:
        TrainingInputError: the file cannot be read.
    """
    try:
        with safe_globals():  # of NumPy, whose array a file of transformers' holds
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        if state.get("format") != FORMAT:
            return False
        name, keys, *rest = state["numpy"]
        random.setstate(_tuples(state["python"]))
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
        torch.set_rng_state(state["cpu"])
        if device.type != "cpu" and "device" in state:
            torch.get_device_module(device).set_rng_state(state["device"], device)
    except FileNotFoundError as error:
        raise TrainingInputError(
            f"{file} is missing, without which dropout would go on differently; give another checkpoint"
        ) from error
    except Exception as error:  # torch.load raises what it likes for a damaged file
        text = " ".join(str(error).split())
        raise TrainingInputError(
            f"{file} cannot be read ({type(error).__name__}: {text[:200]}); give another checkpoint"
        ) from error
    return True


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, (list, tuple)) else value
