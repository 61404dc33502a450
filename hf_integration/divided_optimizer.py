"""A torch optimizer of a whole model, made to step the part of it that a rank keeps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from hf_integration.errors import TrainingInputError

ELEMENTWISE = (
    torch.optim.AdamW,
    torch.optim.Adam,
    torch.optim.SGD,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
)
"""Those that treat every number by itself, so that a slice of a matrix is stepped as within the whole one."""


def group_of_each(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, int]:
    """Return in which of the optimizer's groups each parameter of the whole model is, by its name.

    Raises:
        TrainingInputError: the optimizer may need whole matrices, has been used, or has parameters of
            something else than the model.
    """
    if type(optimizer) not in ELEMENTWISE:
        offered = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        raise TrainingInputError(
            f"the optimizer is a {type(optimizer).__name__}, which may need whole matrices, of which a rank "
            f"has a slice; use one of torch.optim's {offered}"
        )
    if optimizer.state:
        raise TrainingInputError(
            "the optimizer has made steps already, with a state of the whole model; prepare it before "
            "training"
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise TrainingInputError(
                    f"group {number} of the optimizer has a parameter of shape {tuple(parameter.shape)} that "
                    "is none of the model's; make the optimizer of the model that is prepared with it"
                )
            found[names[id(parameter)]] = number
    return found


def give_part(
    optimizer: torch.optim.Optimizer, groups: Mapping[str, int], part: Mapping[str, nn.Parameter]
) -> None:
    """Let the optimizer have a rank's parameters in the groups where the whole model's were.

    The groups stay the same objects, so that a scheduler made of the optimizer goes on to set their rates.

    Args:
        optimizer: changed in place.
        groups: what `group_of_each` returned.
        part: this rank's parameters, by the names in the whole model.
    """
    for number, group in enumerate(optimizer.param_groups):
        group["params"] = [parameter for name, parameter in part.items() if groups.get(name) == number]
