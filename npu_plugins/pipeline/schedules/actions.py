"""What a rank of a pipeline does: one action after another, each a plain value with a string form.

The strings are for people, tests and files: ``F5@2`` is the forward of micro-batch 5 at stage 2, ``SA5@2>3``
sends its result to rank 3, ``[SA5@2>3 RG1@2<3]`` posts a send and a receive together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, TypeAlias, Union

from npu_plugins.pipeline.errors import ScheduleError


class Kind(str, Enum):
    """The kinds of action; the value is the letter of the string form."""

    FORWARD = "F"
    """Forward of one micro-batch through one stage."""
    INPUT_GRADIENT = "I"
    """First half of a split backward: the gradient of the stage's input, which the stage before waits for."""
    WEIGHT_GRADIENT = "W"
    """Second half: the gradient of the stage's weights, which nobody waits for. Frees the activations."""
    BACKWARD = "B"
    """Both halves at once. Frees the activations."""
    SEND_ACTIVATION = "SA"
    """Send this stage's output to the rank of the next stage."""
    RECEIVE_ACTIVATION = "RA"
    """Receive this stage's input from the rank of the stage before."""
    SEND_GRADIENT = "SG"
    """Send the gradient of this stage's input to the rank of the stage before."""
    RECEIVE_GRADIENT = "RG"
    """Receive the gradient of this stage's output from the rank of the next stage."""


COMPUTE = frozenset({Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT, Kind.BACKWARD})
"""What the generators emit."""
SENDS = frozenset({Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT})
RECEIVES = frozenset({Kind.RECEIVE_ACTIVATION, Kind.RECEIVE_GRADIENT})


class Action(NamedTuple):
    """One thing that one rank does for one micro-batch at one of its stages."""

    kind: Kind
    stage: int
    """The stage of *this* rank that it is about, from 0 to ranks × chunks - 1."""
    micro_batch: int
    """From 0 to the number of micro-batches - 1."""
    peer: int | None = None
    """The other rank of a send or receive; None for compute."""

    def __str__(self) -> str:
        arrow = "" if self.peer is None else f"{'>' if self.kind in SENDS else '<'}{self.peer}"
        return f"{self.kind.value}{self.micro_batch}@{self.stage}{arrow}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Return the action that `str` writes as `text`.

        Raises:
            ScheduleError: the text is no action, or an arrow is missing, points the wrong way or is too much.
        """
        match = _ACTION.fullmatch(text)
        if match is None:
            raise ScheduleError(
                f"{text!r} is no pipeline action; write KIND MICRO-BATCH @ STAGE as in F5@2, I5@2, W5@2 or "
                "B5@2, and the other rank behind a transfer as in SA5@2>3, RA5@2<1, SG5@2>1 or RG5@2<3"
            )
        kind = Kind(match["kind"])
        arrow = ">" if kind in SENDS else "<" if kind in RECEIVES else None
        if match["arrow"] != arrow:
            wanted = f"{arrow!r} and the other rank" if arrow else "nothing"
            raise ScheduleError(
                f"{text!r} has the wrong ending: {kind.value} takes {wanted} behind its stage"
            )
        peer = None if match["peer"] is None else int(match["peer"])
        return cls(kind, int(match["stage"]), int(match["micro_batch"]), peer)


class Exchange(NamedTuple):
    """Transfers that a rank posts together (`batch_isend_irecv`), in this order.

    HCCL matches point-to-point calls by order and not by tag, and a rank that has posted a send alone may
    wait for it before its next receive; inside one exchange all transfers make progress at once.
    """

    transfers: tuple[Action, ...]

    def __str__(self) -> str:
        return f"[{' '.join(map(str, self.transfers))}]"


Step: TypeAlias = Union[Action, Exchange]  # noqa: UP007 (an alias is evaluated, and reads the same on 3.10)
"""One entry of a rank's list: a compute action, or an exchange."""


def format_steps(steps: Iterable[Step]) -> str:
    """Return one line: the string forms of `steps`, a blank between them."""
    return " ".join(map(str, steps))


def parse_steps(text: str) -> tuple[Step, ...]:
    """Return the steps that `format_steps` writes as `text`.

    Raises:
        ScheduleError: a bracket is open or empty, a transfer stands outside brackets or compute inside them,
            or something is no action.
    """
    steps: list[Step] = []
    for match in _STEP.finditer(text):
        if match["single"]:
            action = Action.parse(match["single"])
            if action.kind not in COMPUTE:
                raise ScheduleError(f"the transfer {action} stands alone; put it in brackets: [{action}]")
            steps.append(action)
            continue
        transfers = tuple(Action.parse(word) for word in match["inside"].split())
        if not transfers or any(action.kind in COMPUTE for action in transfers):
            raise ScheduleError(f"{match[0]!r} is no exchange: brackets hold one or more sends and receives")
        steps.append(Exchange(transfers))
    return tuple(steps)


_ACTION = re.compile(
    r"(?P<kind>F|I|W|B|SA|RA|SG|RG)(?P<micro_batch>\d+)@(?P<stage>\d+)(?:(?P<arrow>[<>])(?P<peer>\d+))?",
    re.ASCII,
)
_STEP = re.compile(r"\[(?P<inside>[^\[\]]*)\]|(?P<single>\S+)")
