"""Ranks drawn together that wait in the same call, or stand at the same place."""

from __future__ import annotations

from npu_plugins.diagnostics.hang.dump import Frame
from npu_plugins.diagnostics.hang.findings import Place, Wait
from npu_plugins.diagnostics.hang.history import History, describe
from npu_plugins.diagnostics.hang.places import Source, inside, main_stack, users_frames, waits_in
from npu_plugins.diagnostics.hang.stuck import call_text
from npu_plugins.diagnostics.hang.waits import Graph, Waiting

_DEPTH = 4
"""Frames of the user's that are kept of a place."""


def group_waits(history: History, graph: Graph, source: Source) -> tuple[Wait, ...]:
    """Return what ranks wait in, the longest wait first."""
    alike: dict[tuple[object, ...], list[Waiting]] = {}
    for rank in graph.waiting:
        waiting = graph.of(rank)
        if waiting is not None:
            frames = users_frames(waiting.call.stack)
            key = (call_text(history, waiting), frames[:1], bool(waiting.waits_for))
            alike.setdefault(key, []).append(waiting)
    waits = [_wait(history, sharing, source) for sharing in alike.values()]
    return tuple(sorted(waits, key=lambda wait: -wait.seconds))


def group_places(history: History, graph: Graph, source: Source) -> tuple[Place, ...]:
    """Return where the ranks are that wait in no call, or whose program does something else meanwhile."""
    alike: dict[tuple[tuple[Frame, ...], str, str], list[int]] = {}
    for rank, dump in history.dumps.items():
        stack = main_stack(dump)
        if rank in graph.waiting and (not stack or waits_in(stack, source)) and not dump.error:
            continue
        frames = users_frames(stack)[:_DEPTH]
        alike.setdefault((frames, inside(stack), _short(dump.error)), []).append(rank)
    return tuple(
        Place(tuple(ranks), frames, function, _text(frames, source), error)
        for (frames, function, error), ranks in alike.items()
    )


def _wait(history: History, sharing: list[Waiting], source: Source) -> Wait:
    first = sharing[0]
    frames = users_frames(first.call.stack)[:_DEPTH]
    call = call_text(history, first)
    groups = {(one.call.group, history.members(one.rank, one.call.group)) for one in sharing}
    return Wait(
        ranks=tuple(one.rank for one in sharing),
        call=call.partition(" (")[0],
        what=describe(first.call),
        groups=len(groups),
        waits_for=tuple(sorted({other for one in sharing for other in one.waits_for})),
        seconds=max(one.seconds for one in sharing),
        place=frames,
        text=_text(frames, source),
    )


def _text(frames: tuple[Frame, ...], source: Source) -> str:
    return source(frames[0]) if frames else ""


def _short(error: str) -> str:
    return " ".join(error.split())[:120]
