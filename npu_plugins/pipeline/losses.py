"""The losses of the micro-batches of a step, and their mean on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.comm import ProcessMesh
from npu_plugins.pipeline.errors import PipelineError

TOTAL = "loss"


def split_loss(result: Any) -> dict[str, torch.Tensor]:
    """Return the losses of what a loss function returned, the one to minimise first, under the name ``loss``.

    Raises:
        PipelineError: it is neither a scalar nor a dict of scalars with the key ``"loss"``.
    """
    losses: Mapping[str, Any] = result if isinstance(result, Mapping) else {TOTAL: result}
    wrong = {
        name: f"of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        for name, loss in losses.items()
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1
    }
    if TOTAL not in losses or wrong:
        told = (
            ", ".join(f"{name} is {what}" for name, what in wrong.items())
            or f"its keys are {', '.join(losses)}"
        )
        raise PipelineError(
            f"the loss function (or, without one, the last layer) gave no scalar loss: {told}; return a "
            "scalar "
            'tensor, or a dict of them whose key "loss" is the one to minimise'
        )
    ordered = {TOTAL: losses[TOTAL]} | {name: loss for name, loss in losses.items() if name != TOTAL}
    return {name: loss.reshape(()) for name, loss in ordered.items()}


class LossSum:
    """Adds up a step's losses on the rank of the last stage."""

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}

    def add(self, losses: Mapping[str, torch.Tensor]) -> None:
        """Take the losses of one micro-batch."""
        for name, loss in losses.items():
            value = loss.detach().float()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def mean(
        self, names: list[str], micro_batches: int, mesh: ProcessMesh, source: int
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return the means over micro-batches and replicas, and this replica's mean loss; on every rank.

        Args:
            names: of the losses, the same everywhere.
            micro_batches: of the step.
            mesh: of the job.
            source: the pipeline rank of the last stage.
        """
        values = torch.zeros(len(names) + 1, device=mesh.device)
        if mesh.rank("pp") == source:
            own = torch.stack([self.sums[name] for name in names]) / micro_batches
            values[1:] = own
            if mesh.size("dp") > 1:
                dist.all_reduce(values, group=mesh.group("dp"))
                values /= mesh.size("dp")
            values[0] = own[0]
        if mesh.size("pp") > 1:
            dist.broadcast(values, group_src=source, group=mesh.group("pp"))
        return dict(zip(names, values[1:].unbind(), strict=True)), values[0]
