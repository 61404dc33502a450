"""Whether one rank's list is right by itself: its own work, once each, and nothing before what it needs."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import COMPUTE, Action, Exchange, Kind
from npu_plugins.pipeline.schedules.schedule import Schedule


class _Rule(NamedTuple):
    """When an action of one kind at one stage may come. Marks are those of `RankCheck`."""

    peer: int | None
    """The rank at the other end of a transfer."""
    against: tuple[tuple[bytearray, str], ...]
    """Marks that must not be set at the action's own slot, each with the words of the refusal."""
    needs: tuple[tuple[bytearray, int, str], ...]
    """Marks that must be set, with how far from that slot."""
    sets: tuple[bytearray, ...]
    """Marks that the action sets."""


class RankCheck:
    """Walks through one rank's list and marks what has been done, sent and received.

    The marks of a kind are one byte for each stage and micro-batch, at the slot stage × m + micro-batch.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule, self.rank = schedule, rank
        self.rank_of, self.micro_batches = schedule.placement.rank_of, schedule.micro_batches
        slots = len(self.rank_of) * self.micro_batches
        self.marks = {kind: bytearray(slots) for kind in Kind}
        self.passed_on = bytearray(slots)
        """Where the gradient of a stage's input has been computed, by ``B`` or ``I``."""
        self.place = 0

    def run(self) -> None:
        """Check the rank's list by itself.

        Raises:
            ScheduleError: with the first step that is wrong, or the first thing that is not done at all.
        """
        rules = {stage: self._rules(stage) for stage in self.schedule.placement.stages_of(self.rank)}
        for place, step in enumerate(self.schedule.steps[self.rank]):
            self.place = place
            together = isinstance(step, Exchange)
            for action in step.transfers if isinstance(step, Exchange) else (step,):
                kind, stage, micro_batch, peer = action
                if stage not in rules:
                    self.refuse(action, f"stage {stage} is not on this rank")
                if not 0 <= micro_batch < self.micro_batches:
                    self.refuse(action, f"there are {self.micro_batches} micro-batches, counted from 0")
                rule = rules[stage].get(kind)
                if rule is None or rule.peer != peer or together is (kind in COMPUTE):
                    self._refuse_place(action, together)
                slot = stage * self.micro_batches + micro_batch
                for marks, why in rule.against:
                    if marks[slot]:
                        self.refuse(action, why)
                for marks, offset, why in rule.needs:
                    if not marks[slot + offset]:
                        self.refuse(action, why)
                for marks in rule.sets:
                    marks[slot] = 1
        self._check_complete()

    def refuse(self, action: Action, why: str) -> NoReturn:
        """Raise, with the place of `action`."""
        raise ScheduleError(
            f"schedule {self.schedule.name} cannot run: rank {self.rank}, step {self.place}, {action}: {why}"
        )

    def _rules(self, stage: int) -> dict[Kind, _Rule]:
        """Return when each kind of action may come at one of the rank's stages."""
        rules = {Kind.FORWARD: self._rule(Kind.FORWARD, needs=self._input(stage))}
        if not self.schedule.forward_only:
            forward = (self.marks[Kind.FORWARD], 0, "its forward has not been done yet")
            gradient = (forward, *self._output_gradient(stage))
            half = (self.marks[Kind.INPUT_GRADIENT], 0, "its input gradient has not been computed yet")
            whole = (self.marks[Kind.BACKWARD], "its whole backward has been done before")
            begun = (self.passed_on, "its input gradient has been computed before")
            for kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
                rules[kind] = self._rule(kind, (whole, begun), gradient, also=(self.passed_on,))
            rules[Kind.WEIGHT_GRADIENT] = self._rule(Kind.WEIGHT_GRADIENT, (whole,), (forward, half))
        return rules | self._transfers(stage)

    def _rule(
        self,
        kind: Kind,
        against: tuple[tuple[bytearray, str], ...] = (),
        needs: tuple[tuple[bytearray, int, str], ...] = (),
        also: tuple[bytearray, ...] = (),
        peer: int | None = None,
    ) -> _Rule:
        own = self.marks[kind]
        return _Rule(peer, (*against, (own, "it has been done before")), needs, (own, *also))

    def _input(self, stage: int) -> tuple[tuple[bytearray, int, str], ...]:
        if stage == 0:
            return ()
        why = f"the output of stage {stage - 1} is not there yet"
        if self.rank_of[stage - 1] == self.rank:
            return ((self.marks[Kind.FORWARD], -self.micro_batches, why),)
        return ((self.marks[Kind.RECEIVE_ACTIVATION], 0, why),)

    def _output_gradient(self, stage: int) -> tuple[tuple[bytearray, int, str], ...]:
        if stage == len(self.rank_of) - 1:
            return ()
        why = f"the gradient from stage {stage + 1} is not there yet"
        if self.rank_of[stage + 1] == self.rank:
            return ((self.passed_on, self.micro_batches, why),)
        return ((self.marks[Kind.RECEIVE_GRADIENT], 0, why),)

    def _transfers(self, stage: int) -> dict[Kind, _Rule]:
        """Return the rules of transfers with the stages before and behind, where those are elsewhere."""
        output = (self.marks[Kind.FORWARD], 0, "it is sent before its forward has been done")
        gradient = (self.passed_on, 0, "it is sent before it has been computed")
        rules = {}
        for kind, needs in {
            Kind.SEND_ACTIVATION: (output,),
            Kind.RECEIVE_ACTIVATION: (),
            Kind.SEND_GRADIENT: (gradient,),
            Kind.RECEIVE_GRADIENT: (),
        }.items():
            other = _other_end(kind, stage)
            if 0 <= other < len(self.rank_of) and self.rank_of[other] != self.rank:
                rules[kind] = self._rule(kind, needs=needs, peer=self.rank_of[other])
        return rules

    def _refuse_place(self, action: Action, together: bool) -> NoReturn:
        """Say why an action of this kind has no place here."""
        kind, stage, *_ = action
        if kind in COMPUTE:
            if together:
                self.refuse(action, "compute stands inside an exchange")
            self.refuse(action, "an evaluation has forwards only" if action.peer is None else "it has a peer")
        if not together:
            self.refuse(action, "a transfer stands outside an exchange")
        other = _other_end(kind, stage)
        if not 0 <= other < len(self.rank_of):
            self.refuse(action, f"there is no stage {other}")
        holder = self.rank_of[other]
        where = "on this rank too" if holder == self.rank else f"on rank {holder}"
        self.refuse(action, f"stage {other} is {where}")

    def _check_complete(self) -> None:
        """Every stage and micro-batch has had its forward and its backward; order has been checked before."""
        allowed = _COMPLETE[self.schedule.forward_only]
        for stage in self.schedule.placement.stages_of(self.rank):
            span = slice(stage * self.micro_batches, (stage + 1) * self.micro_batches)
            done = zip(*(self.marks[kind][span] for kind in _COMPUTE), strict=True)
            for micro_batch, each in enumerate(done):
                if each not in allowed:
                    raise ScheduleError(
                        f"schedule {self.schedule.name} cannot run: rank {self.rank} does "
                        f"{_letters(each) or 'nothing'} for micro-batch {micro_batch} at stage {stage}; it "
                        f"takes {' or '.join(map(_letters, allowed))}"
                    )


def _other_end(kind: Kind, stage: int) -> int:
    """Return the stage with which `stage` shares a transfer."""
    return stage + 1 if kind in (Kind.SEND_ACTIVATION, Kind.RECEIVE_GRADIENT) else stage - 1


_COMPUTE = (Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT, Kind.BACKWARD)
_COMPLETE = {True: ((1, 0, 0, 0),), False: ((1, 0, 0, 1), (1, 1, 1, 0))}
"""By whether there are forwards only: what of `_COMPUTE` is done for a stage and micro-batch."""


def _letters(done: tuple[int, ...]) -> str:
    return ", ".join(kind.value for kind, mark in zip(_COMPUTE, done, strict=True) if mark)
