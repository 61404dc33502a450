"""The answer to an alarm: every rank dumps, the lowest living one writes the report, and the ranks end."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npu_plugins.diagnostics.hang.analysis import analyse
from npu_plugins.diagnostics.hang.board import REPORT, Alarm
from npu_plugins.diagnostics.hang.dump import RankDump
from npu_plugins.diagnostics.hang.failure import Failure, take_dump
from npu_plugins.diagnostics.hang.files import save_absences
from npu_plugins.diagnostics.hang.findings import Absence
from npu_plugins.diagnostics.hang.recorder import Ring
from npu_plugins.diagnostics.hang.report import write_report
from npu_plugins.diagnostics.hang.store import StoreGoneError

if TYPE_CHECKING:
    from npu_plugins.diagnostics.hang.session import Session

EXIT_STATUS = 1
GATHER_SECONDS = 5.0
"""How long the writer waits for the dumps of ranks that are not known to be gone."""
TAKE_OVER_SECONDS = 8.0
"""After this, any rank may write the report: the one whose turn it was does not."""
ANSWER_SECONDS = 20.0
FAREWELL_SECONDS = 3.0
"""How long the writer waits for its neighbours to end, before it ends those that gave no dump."""
LAST_RESORT_SECONDS = 40
"""faulthandler's timer, in C, ends the process if Python never gets to run again."""
STORE_FAREWELL_SECONDS = 1.0
"""For so long ranks of other hosts can still read in the store that the report is written."""
MANY_RANKS = 64


@dataclass
class Answer:
    """One alarm, answered by one rank."""

    session: Session
    ring: Ring
    alarm: Alarm
    failure: Callable[[], Failure | None]
    """The exception that ends this rank, which may be raised any time."""
    waited: float
    timeout: float
    silent: set[int] = field(default_factory=set)
    wrote: bool = False

    def give(self) -> None:
        """Dump, and write the report or wait until it is written."""
        board, roll = self.session.board, self.session.roll
        if self.alarm.ends_the_job:
            _end_after(LAST_RESORT_SECONDS)
        if self.alarm.rank == self.session.who.rank:
            say(f"{self.alarm.sentence}; a report follows")
        own = take_dump(
            self.session.who,
            self.ring,
            self.alarm.reason,
            waited=self.waited,
            timeout=self.timeout,
            failure=self.failure,
        )
        board.publish(self.alarm, own)
        begun, asked = time.monotonic(), False
        while not board.is_reported(self.alarm) and time.monotonic() - begun < ANSWER_SECONDS:
            my_turn = roll.lowest_living() or time.monotonic() - begun > TAKE_OVER_SECONDS
            if my_turn and not asked:
                asked = True
                if board.claim_report(self.alarm):
                    self._write(own)
                    return
            self._pause()

    def end_process(self) -> None:
        """End this process, and as the writer see that the neighbours end."""
        if self.wrote and self.silent:
            self._bid_farewell()
        elif len(self.session.roll.neighbours.processes) + 1 < self.session.who.world_size:
            time.sleep(STORE_FAREWELL_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_STATUS)

    def end_soon(self) -> None:
        """Let the main thread end the process with its exception, for which it gets a little time."""
        _end_after(ANSWER_SECONDS)

    def _write(self, own: RankDump) -> None:
        dumps = self._gather({own.rank: own})
        absent = {
            rank: self.session.roll.gone.get(rank) or self._absence(rank)
            for rank in range(own.world_size)
            if rank not in dumps
        }
        self.silent = {rank for rank, absence in absent.items() if absence.kind == "silent"}
        folder = self.session.board.folder_of(self.alarm)
        with suppress(OSError):
            save_absences(folder, absent)
        try:
            text = write_report(analyse(dumps, absent))
        except Exception as error:  # the job must end all the same, and the dumps are there to be read
            text = f"This report cannot be made ({type(error).__name__}: {error}); read the dumps."
        self.session.board.report_done(self.alarm, text)
        where = f"\nnpu-plugins: the dumps and this report are in {folder}\n" if _holds(folder) else "\n"
        write(text.rstrip() + where)
        self.wrote = True

    def _gather(self, dumps: dict[int, RankDump]) -> dict[int, RankDump]:
        """Wait for the dumps of all ranks that may still give one."""
        deadline = time.monotonic() + GATHER_SECONDS
        while True:
            for rank in range(self.session.who.world_size):
                found = None if rank in dumps else self.session.board.dump_of(self.alarm, rank)
                if found is not None:
                    dumps[rank] = found
            silent = set(range(self.session.who.world_size)) - set(dumps) - set(self.session.roll.gone)
            if not any(self._left(rank) is None for rank in silent) or time.monotonic() > deadline:
                return dict(sorted(dumps.items()))
            self._pause()

    def _absence(self, rank: int) -> Absence:
        if self._left(rank) is not None:
            return Absence("left", "it said that it was done")
        return Absence("silent", f"no answer for {GATHER_SECONDS:.0f} s")

    def _left(self, rank: int) -> dict[str, int] | None:
        with suppress(StoreGoneError):
            return self.session.board.left(rank)
        return None

    def _pause(self) -> None:
        roll = self.session.roll
        time.sleep(0.05 if self.session.who.world_size <= MANY_RANKS else 0.5)
        roll.take_in(_ended(list(roll.neighbours.descriptors)))

    def _bid_farewell(self) -> None:
        """Wait until the neighbours have ended; a rank that gave no dump, stopped or stuck, is ended."""
        roll = self.session.roll
        deadline = time.monotonic() + FAREWELL_SECONDS
        while roll.neighbours.processes and time.monotonic() < deadline:
            self._pause()
        roll.neighbours.signal(signal.SIGKILL, self.silent)


def say(sentence: str) -> None:
    """Print a sentence on stderr, at once."""
    write(f"npu-plugins: {sentence}\n")


def write(text: str) -> None:
    """Write on the process's own stderr: while torch's excepthook runs, `sys.stderr` is a buffer of its."""
    if sys.__stderr__ is not None:
        sys.__stderr__.write(text)
        sys.__stderr__.flush()


def _end_after(seconds: float) -> None:
    """End the process then, without Python: faulthandler's timer is in C, and writes the stacks first."""
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)


def _ended(descriptors: list[int]) -> list[int]:
    import select

    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(0)]


def _holds(folder: Path) -> bool:
    return (folder / REPORT).exists()
