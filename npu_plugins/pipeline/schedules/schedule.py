"""A pipeline schedule as data: which rank holds which stages, and what each rank does in which order."""

from __future__ import annotations

from dataclasses import dataclass

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import Action, Exchange, Kind, Step, format_steps


@dataclass(frozen=True)
class Placement:
    """Where the stages of the model live. The model runs through stage 0, 1, … in this order."""

    rank_of: tuple[int, ...]
    """The rank that holds each stage. Every rank holds equally many: its chunks."""

    @property
    def stages(self) -> int:
        """Stages of the whole model: ranks × chunks."""
        return len(self.rank_of)

    @property
    def ranks(self) -> int:
        """Ranks of the pipeline (its degree, p)."""
        return max(self.rank_of) + 1

    @property
    def chunks(self) -> int:
        """Stages that each rank holds (virtual stages, v)."""
        return self.stages // self.ranks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of `rank`, its chunk 0 first."""
        return tuple(stage for stage, holder in enumerate(self.rank_of) if holder == rank)

    def chunk_of(self, stage: int) -> int:
        """Return which of its rank's chunks `stage` is."""
        return self.stages_of(self.rank_of[stage]).index(stage)


def loop(ranks: int, chunks: int = 1) -> Placement:
    """Stage s on rank s mod p (Narayanan et al. 2021, arXiv 2104.04473 §2.2.2); 1 chunk: the plain one."""
    return Placement(tuple(range(ranks)) * chunks)


def vee(ranks: int) -> Placement:
    """Down the ranks and up again: stages r and 2p - 1 - r on rank r (arXiv 2405.15362, "V").

    The last rank holds two stages in a row, which hand over without a message, and rank 0 holds the first and
    the last stage: the embedding, and the loss that starts the backward.
    """
    return Placement((*range(ranks), *reversed(range(ranks))))


@dataclass(frozen=True)
class Schedule:
    """One optimizer step of a pipeline, as one list of steps per rank.

    A generator's lists hold compute only; `add_communication` returns the schedule with exchanges put in. A
    rank works off its list in order, with these rules for the executor:

    - An `Exchange` is posted, not waited for. The buffer of a receive is allocated when it is posted.
    - ``F`` waits for the ``RA`` of its stage and micro-batch, ``B`` and ``I`` for the ``RG``. A neighbouring
      stage on the same rank hands over without a message. Stage 0 reads the batch; the last stage's loss
      starts the backward.
    - A sent tensor is kept until its exchange has completed.
    - ``B`` and ``W`` free the activations of their stage and micro-batch; ``I`` leaves what ``W`` needs.
    """

    name: str
    """As the user writes it, such as ``"zb-v"``."""
    placement: Placement
    micro_batches: int
    steps: tuple[tuple[Step, ...], ...]
    """One list per rank."""
    forward_only: bool = False
    """Whether it is an evaluation: no backward, nothing kept."""

    @property
    def ranks(self) -> int:
        """Ranks of the pipeline."""
        return self.placement.ranks

    def compute(self, rank: int) -> tuple[Action, ...]:
        """Return the compute actions of `rank` in order, without the exchanges."""
        return tuple([step for step in self.steps[rank] if not isinstance(step, Exchange)])

    @property
    def splits_backward(self) -> bool:
        """Whether some backward is split into ``I`` and ``W``."""
        return any(step[0] is Kind.INPUT_GRADIENT for steps in self.steps for step in steps)

    def __str__(self) -> str:
        return "\n".join(f"rank {rank}: {format_steps(steps)}" for rank, steps in enumerate(self.steps))


def require_counts(name: str, **counts: int) -> None:
    """Refuse a count that is no positive whole number.

    Raises:
        ScheduleError: with the schedule's name, and the name and value of the count.
    """
    for what, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ScheduleError(f"schedule {name} with {what}={count!r}: give a whole number, 1 or more")
