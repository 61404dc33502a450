"""A layer of a split model that can be run before the stages are known, to measure its time."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class TrialLayer:
    """Builds a copy of a layer with some random weights in it; the layer itself stays without."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.typename, self.forward_fn = spec.typename, getattr(spec, "forward_fn", None)

    def build(self) -> nn.Module:
        """Return the copy, on the CPU."""
        layer = copy.deepcopy(self.spec.build())
        made: dict[int, nn.Parameter] = {}
        generator = torch.Generator().manual_seed(0)
        for module in layer.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) not in made:
                    weight = torch.empty(parameter.shape, dtype=parameter.dtype)
                    made[id(parameter)] = nn.Parameter(weight.normal_(0, 0.02, generator=generator))
                setattr(module, name, made[id(parameter)])
        return layer
