"""Ranks that build parts of one model start from the same weights, and fail together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from npu_plugins.comm import ProcessMesh
from npu_plugins.pipeline.control import Control
from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.same_batches import content


def check_same_source(identity: Mapping[str, Any], mend: str, mesh: ProcessMesh, control: Control) -> None:
    """Refuse ranks of one replica whose parts would be of different models; all ranks of the world call this.

    Replicas are not compared with each other: DeepSpeed gives all of them the first one's weights.

    Args:
        identity: what is the same on all ranks of a replica, by a name for the error.
        mend: what to do if it is not.
        mesh: of the job.
        control: the connection of all ranks.

    Raises:
        PipelineError: on every rank, naming what differs and where.
    """
    found = control.everyone(content(dict(identity)))
    differ = [ranks for ranks in mesh.topology.groups("model") if len({found[rank] for rank in ranks}) > 1]
    if not differ:
        return
    everyone = control.everyone({name: content(value) for name, value in identity.items()})
    first = differ[0][0]
    other = next(rank for rank in differ[0] if found[rank] != found[first])
    names = [*everyone[first], *everyone[other]]
    name = next(name for name in names if everyone[first].get(name) != everyone[other].get(name))
    raise PipelineError(
        f"{name} is not the same on rank {other} as on rank {first}, so that their parts would be of "
        f"different models; {mend}"
    )


@contextmanager
def failing_together(what: str, control: Control) -> Iterator[None]:
    """Within, what one rank raises is raised on all, at the end: there as it is, elsewhere as word of it.

    Args:
        what: the rank does, for the others' error.
        control: the connection of all ranks, all of which enter and leave.

    Raises:
        PipelineError: another rank failed.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    told = "" if error is None else f"{what}: {type(error).__name__}: {error}"
    failed = [f"rank {rank} failed at {text}" for rank, text in enumerate(control.texts(told)) if text]
    if error is not None:
        raise error
    if failed:
        raise PipelineError("; ".join(failed))
