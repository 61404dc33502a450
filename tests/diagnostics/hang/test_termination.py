"""SIGTERM that comes while a rank may have to tell of another ends it as soon as it has nothing to tell."""

from __future__ import annotations

import os
import signal

import pytest

from npu_plugins.diagnostics.hang.termination import Termination
from tests.harness import RankPool


def asked_to_end(released: tuple[str, ...]) -> bool:
    """Be asked to end while held for two reasons, of which some are released; returns whether one lives."""
    termination = Termination()
    termination.hold("loss")
    termination.hold("exception")
    os.kill(os.getpid(), signal.SIGTERM)
    for reason in released:
        termination.release(reason)
    return True


def is_held_for_nothing() -> bool:
    """Hold and release without being asked, and be asked then."""
    termination = Termination()
    termination.hold("loss")
    termination.release("loss")
    os.kill(os.getpid(), signal.SIGTERM)
    return True


def has_a_handler() -> list[str]:
    """Be asked to end while held, as a program with a handler of its own."""
    called: list[str] = []
    signal.signal(signal.SIGTERM, lambda number, frame: called.append("own"))
    termination = Termination()
    termination.hold("loss")
    os.kill(os.getpid(), signal.SIGTERM)
    termination.release("loss")
    return called


@pytest.mark.parametrize(
    ("body", "arguments", "ends"),
    [
        (asked_to_end, ((),), False),
        (asked_to_end, (("loss",),), False),
        (asked_to_end, (("loss", "exception"),), True),
        (is_held_for_nothing, (), True),
    ],
)
def test_it_ends_the_rank_when_the_last_reason_is_released(
    body: object, arguments: tuple[object, ...], ends: bool, rank_pool: RankPool
) -> None:
    with rank_pool.world(1, "gloo") as world:
        (outcome,) = world.outcomes(body, *arguments)
    assert (outcome.kind, "SIGTERM" in outcome.text) == (("died", True) if ends else ("returned", False))


def test_a_handler_of_the_program_stays(rank_pool: RankPool) -> None:
    with rank_pool.world(1, "gloo") as world:
        assert world.run(has_a_handler) == [["own"]]
