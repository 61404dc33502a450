"""Interleaved 1F1B: each rank holds several chunks of the model, so the pipeline fills in smaller steps."""

from __future__ import annotations

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import Action, Kind
from npu_plugins.pipeline.schedules.schedule import Schedule, loop, require_counts


def interleaved(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Return the interleaved 1F1B schedule (Narayanan et al. 2021, arXiv 2104.04473 §2.2.2).

    The bubble is (p - 1)(F + I + W) / v for v chunks on each rank; rank 0 keeps p + (p - 1) / v activations,
    and there are v times as many messages as in 1F1B.

    Raises:
        ScheduleError: a count is no positive whole number, or the micro-batches are no multiple of the ranks.
    """
    require_counts("interleaved", ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    if micro_batches % ranks:
        more = micro_batches + -micro_batches % ranks
        less = f"{more - ranks} or " if more > ranks else ""
        raise ScheduleError(
            f"schedule interleaved on {ranks} ranks needs micro-batches in multiples of {ranks}, not "
            f"{micro_batches}: use {less}{more}"
        )
    steps = tuple(_rank(rank, ranks, micro_batches, chunks) for rank in range(ranks))
    return Schedule("interleaved", loop(ranks, chunks), micro_batches, steps)


def _rank(rank: int, ranks: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """Groups of p micro-batches take chunk by chunk; the warm-up ends when the first gradient is back."""

    def action(kind: Kind, turn: int) -> Action:
        group, place = divmod(turn, ranks * chunks)
        chunk, within = divmod(place, ranks)
        if kind is Kind.BACKWARD:
            chunk = chunks - 1 - chunk
        return Action(kind, chunk * ranks + rank, group * ranks + within)

    turns = micro_batches * chunks
    ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, turns)
    order = [action(Kind.FORWARD, turn) for turn in range(ahead)]
    for turn in range(ahead, turns):
        order += [action(Kind.FORWARD, turn), action(Kind.BACKWARD, turn - ahead)]
    order += [action(Kind.BACKWARD, turn) for turn in range(turns - ahead, turns)]
    return tuple(order)
