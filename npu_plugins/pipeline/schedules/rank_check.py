"""Whether one rank's list is right by itself: its own work, once each, and nothing before what it needs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NoReturn

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import COMPUTE, Action, Exchange, Kind
from npu_plugins.pipeline.schedules.schedule import Schedule


class RankCheck:
    """Walks through one rank's list; what has been done, sent and received so far is the set `seen`."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule = schedule
        self.rank = rank
        self.rank_of = schedule.placement.rank_of
        self.seen: set[tuple[Kind, int, int]] = set()
        self.place = 0

    def run(self) -> None:
        """Check the rank's list by itself.

        Raises:
            ScheduleError: with the first step that is wrong, or the first thing that is not done at all.
        """
        for place, step in enumerate(self.schedule.steps[self.rank]):
            self.place = place
            if isinstance(step, Exchange):
                for transfer in step.transfers:
                    self._check_transfer(transfer)
                    self._note(transfer)
            else:
                self._check_compute(step)
                self._note(step)
        self._check_complete()

    def refuse(self, action: Action, why: str) -> NoReturn:
        """Raise, with the place of `action`."""
        raise ScheduleError(
            f"schedule {self.schedule.name} cannot run: rank {self.rank}, step {self.place}, {action}: {why}"
        )

    def _note(self, action: Action) -> None:
        kind, stage, micro_batch, _ = action
        if (kind, stage, micro_batch) in self.seen:
            self.refuse(action, "it has been done before")
        self.seen.add((kind, stage, micro_batch))

    def _has(self, kind: Kind, stage: int, micro_batch: int) -> bool:
        return (kind, stage, micro_batch) in self.seen

    def _check_place(self, action: Action) -> None:
        _, stage, micro_batch, _ = action
        if not 0 <= stage < len(self.rank_of) or self.rank_of[stage] != self.rank:
            self.refuse(action, f"stage {stage} is not on this rank")
        if not 0 <= micro_batch < self.schedule.micro_batches:
            self.refuse(action, f"there are {self.schedule.micro_batches} micro-batches, counted from 0")

    def _gradient_is_there(self, stage: int, micro_batch: int) -> bool:
        return self._has(Kind.BACKWARD, stage, micro_batch) or self._has(
            Kind.INPUT_GRADIENT, stage, micro_batch
        )

    def _check_compute(self, action: Action) -> None:
        self._check_place(action)
        kind, stage, micro_batch, _ = action
        if kind not in COMPUTE:
            self.refuse(action, "a transfer stands outside an exchange")
        if kind is Kind.FORWARD:
            if stage > 0 and not self._is_there(stage - 1, Kind.RECEIVE_ACTIVATION, stage, micro_batch):
                self.refuse(action, f"the output of stage {stage - 1} is not there yet")
            return
        if self.schedule.forward_only:
            self.refuse(action, "an evaluation has forwards only")
        if not self._has(Kind.FORWARD, stage, micro_batch):
            self.refuse(action, "its forward has not been done yet")
        if self._has(Kind.BACKWARD, stage, micro_batch):
            self.refuse(action, "its whole backward has been done before")
        if kind is Kind.WEIGHT_GRADIENT:
            if not self._has(Kind.INPUT_GRADIENT, stage, micro_batch):
                self.refuse(action, "its input gradient has not been computed yet")
            return
        if self._gradient_is_there(stage, micro_batch):
            self.refuse(action, "its input gradient has been computed before")
        last = len(self.rank_of) - 1
        if stage < last and not self._is_there(stage + 1, Kind.RECEIVE_GRADIENT, stage, micro_batch):
            self.refuse(action, f"the gradient from stage {stage + 1} is not there yet")

    def _is_there(self, source: int, receive: Kind, stage: int, micro_batch: int) -> bool:
        """Whether what `stage` takes from `source` has been received, or made here."""
        if self.rank_of[source] != self.rank:
            return self._has(receive, stage, micro_batch)
        if receive is Kind.RECEIVE_ACTIVATION:
            return self._has(Kind.FORWARD, source, micro_batch)
        return self._gradient_is_there(source, micro_batch)

    def _check_transfer(self, action: Action) -> None:
        self._check_place(action)
        kind, stage, micro_batch, peer = action
        if kind in COMPUTE:
            self.refuse(action, "compute stands inside an exchange")
        onward = kind in (Kind.SEND_ACTIVATION, Kind.RECEIVE_GRADIENT)
        other = stage + 1 if onward else stage - 1
        if not 0 <= other < len(self.rank_of):
            self.refuse(action, f"there is no stage {other}")
        if peer != self.rank_of[other] or peer == self.rank:
            where = (
                "on this rank too" if self.rank_of[other] == self.rank else f"on rank {self.rank_of[other]}"
            )
            self.refuse(action, f"stage {other} is {where}")
        if kind is Kind.SEND_ACTIVATION and not self._has(Kind.FORWARD, stage, micro_batch):
            self.refuse(action, "it is sent before its forward has been done")
        if kind is Kind.SEND_GRADIENT and not self._gradient_is_there(stage, micro_batch):
            self.refuse(action, "it is sent before it has been computed")

    def _check_complete(self) -> None:
        """Every stage and micro-batch has had its forward and its backward; order has been checked before."""
        for stage in self.schedule.placement.stages_of(self.rank):
            for micro_batch in range(self.schedule.micro_batches):
                done = {kind for kind in COMPUTE if (kind, stage, micro_batch) in self.seen}
                wanted = _EVALUATED if self.schedule.forward_only else _TRAINED
                if done not in wanted:
                    letters = _letters(done) or "nothing"
                    allowed = " or ".join(map(_letters, wanted))
                    raise ScheduleError(
                        f"schedule {self.schedule.name} cannot run: rank {self.rank} does {letters} for "
                        f"micro-batch {micro_batch} at stage {stage}; it takes {allowed}"
                    )


_EVALUATED = ({Kind.FORWARD},)
_TRAINED = (
    {Kind.FORWARD, Kind.BACKWARD},
    {Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT},
)


def _letters(kinds: AbstractSet[Kind]) -> str:
    return ", ".join(kind.value for kind in Kind if kind in kinds)
