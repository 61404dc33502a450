"""Building a model on the meta device without its random initialization, which costs time there too.

torch computes the shape of ``normal_`` and ``uniform_`` on a meta tensor by running their decomposition in
Python: 3 to 5 ms a parameter (torch 2.13), longer than all else that building a large model's skeleton takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Undrawn(TorchDispatchMode):
    """Skips what would be drawn into tensors on the meta device; all other operations run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, unless it only fills a tensor that holds nothing."""
        fills = torch.Tag.nondeterministic_seeded in func.tags and func._schema.name.endswith("_")  # in place
        if fills and args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
