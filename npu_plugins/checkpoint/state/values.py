"""Small values of an optimizer or a scheduler as JSON has them, and back: nothing is unpickled.

Numbers, texts, lists and dicts stay what they are; a tuple becomes ``{"tuple": […]}`` and a tensor
``{"tensor": […], "dtype": …}``, so that a dict must not have these keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import DTYPES

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_MOST = 1 << 16
"""Elements of a tensor that is written as text."""


def plain(value: Any, what: str) -> Any:
    """Return a value as JSON has it.

    Args:
        value: of numbers, texts, lists, tuples, dicts and small tensors.
        what: it is, for the error.

    Raises:
        CheckpointError: it is, or has in it, something else.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor) and value.numel() <= _MOST and value.dtype in _CODES:
        return {"tensor": value.detach().cpu().tolist(), "dtype": _CODES[value.dtype]}
    if isinstance(value, tuple):
        return {"tuple": [plain(each, what) for each in value]}
    if isinstance(value, list):
        return [plain(each, what) for each in value]
    ours = {"tensor", "tuple"}
    if isinstance(value, Mapping) and all(isinstance(key, str) and key not in ours for key in value):
        return {key: plain(each, f"{what}[{key!r}]") for key, each in value.items()}
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:  # a number of numpy's
        return plain(value.item(), what)
    raise CheckpointError(
        f"{what} is a {type(value).__name__}, which a portable checkpoint cannot hold: it takes numbers, "
        "texts, lists, dicts with texts for keys, and small tensors"
    )


def restored(value: Any) -> Any:
    """Return what `plain` was given, with tensors on the CPU.

    Raises:
        CheckpointError: a tensor's dtype is not known.
    """
    if isinstance(value, list):
        return [restored(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(restored(each) for each in value["tuple"])
    if "tensor" in value:
        if value.get("dtype") not in DTYPES:
            raise CheckpointError(
                f"a tensor of the training state has dtype {value.get('dtype')!r}, which is none of "
                f"{', '.join(DTYPES)}; copy the checkpoint again"
            )
        return torch.tensor(value["tensor"], dtype=DTYPES[value["dtype"]])
    return {key: restored(each) for key, each in value.items()}
