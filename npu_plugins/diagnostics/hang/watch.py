"""The thread of each rank that notices hangs and ends, and answers with one report for the job.

It looks once a second, and at once when a process of the same host ends. A report is made when a wait takes
longer than `npu_plugins.comm.timeouts.wait_limit`, when a rank ends that others need, when one raises, and
when a person asks for it (SIGUSR2). In all but the last case the job ends then: HCCL or torch would end it as
well, a little later and without saying why.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from npu_plugins.comm.timeouts import wait_limit
from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.hang import stacks
from npu_plugins.diagnostics.hang.abort import ABORT, aborts_soon, tells_of_hccl
from npu_plugins.diagnostics.hang.answer import MANY_RANKS, Answer, say
from npu_plugins.diagnostics.hang.board import Alarm, Board
from npu_plugins.diagnostics.hang.failure import Failure, accelerator, device_index
from npu_plugins.diagnostics.hang.greeting import Greeting
from npu_plugins.diagnostics.hang.hooks import install, stay_outermost
from npu_plugins.diagnostics.hang.recorder import Ring
from npu_plugins.diagnostics.hang.roll import YOUNG_SECONDS, Roll
from npu_plugins.diagnostics.hang.session import DefaultGroup, Session, default_group, describe_rank
from npu_plugins.diagnostics.hang.store import StoreGoneError
from npu_plugins.diagnostics.hang.termination import Termination
from npu_plugins.diagnostics.hang.waiting import WaitClock
from npu_plugins.diagnostics.hang.wakeup import Wakeup

SWITCH = "NPU_PLUGINS_HANG_WATCH"
REPORTS = "NPU_PLUGINS_REPORTS"
REPORTS_DEFAULT = "npu-plugins-reports"
INTERVAL = 1.0
EARLY = 0.2
"""The interval until a rank knows its neighbours, one of many, and where no descriptor tells of their end."""
HURRY = 0.05
"""The interval of a rank that is about to end, and until one of a few knows its neighbours. Without a process
group a look takes microseconds."""
RAISE_SECONDS = 2.0
QUIET_SECONDS = 1.5
"""For so long a rank that raises waits whether all others raise as well: then nobody hangs, and all have said
why."""
FAILURE_SECONDS = 25.0
"""A rank that raises waits for the report no longer than this."""
LEAVING_SECONDS = 2.0
GREETING_SECONDS = 1.5
"""A rank that is done before it knows the others waits so long to tell them."""


class HangWatch(threading.Thread):
    """The watch of this process; `start_watch` makes it, `find_watch` finds it."""

    def __init__(self, environ: Mapping[str, str], *, interval: float = INTERVAL) -> None:
        """Take the settings; nothing is looked at before `start`."""
        super().__init__(name="npu-plugins hang watch", daemon=True)
        self.environ = dict(environ)
        self.interval = interval
        self.pid = os.getpid()
        self._begun = time.monotonic()
        self.wakeup = Wakeup()
        self.ring = Ring()
        self.answered = threading.Event()
        self.session: Session | None = None
        self._failure: Failure | None = None
        self._raised: Failure | None = None
        self._abort: Failure | None = None
        self._failed_at: float | None = None
        self._told_failure: float | None = None
        self.release_aborts: Callable[[], None] = lambda: None
        self._leaving = False
        self._left = threading.Event()
        self._greeting: tuple[tuple[int, int], Greeting] | None = None
        self._clock = WaitClock(self._limit, self.ring.pending, stacks.waiting_spot)
        self._group_timeout: timedelta | None = None
        self._has_device = False
        self.termination = Termination()
        wait_limit(self.environ)  # refuses a setting that is no time, here and not in the thread

    # -- called by the main thread

    def raised(self, failure: Failure) -> None:
        """Take in the exception that ends this rank, for a dump that is taken while it is being shown.

        The launcher of a rank that was lost, of which the exception follows, does not end this one meanwhile.
        """
        if self.session is not None:
            self.termination.hold("exception")
        self._raised = failure

    def failed(self, failure: Failure) -> None:
        """Tell the job of the exception or abort that ends this rank; returns once the report is written."""
        if failure.kind == ABORT:
            self._abort = failure
        else:
            self._raised = failure
        self._failure = self._known_failure()
        self._failed_at = time.monotonic()
        self.wakeup.poke()
        self.answered.wait(FAILURE_SECONDS)
        self.termination.release("exception")

    def leave(self) -> None:
        """Tell the job that this rank is done; called when the interpreter exits."""
        self._leaving = True
        self.wakeup.poke()
        self._left.wait(LEAVING_SECONDS)

    # -- the thread

    def run(self) -> None:
        """Look until the process ends."""
        while not (self._leaving or self.answered.is_set()):
            ready = self.wakeup.wait(self._pause(), self._descriptors())
            if self.session is not None and self.session.roll.neighbours.descriptors.keys() & set(ready):
                self.termination.hold("loss")  # the launcher of who has ended may be about to end this rank
            try:
                self._look(ready)
            except StoreGoneError:
                if self.session is not None:
                    self.session.store_lost()
                elif self._failure is not None:
                    self.answered.set()
            except Exception as error:
                say(f"warning: the hang watch ends: {type(error).__name__}: {error}")
                break
        self.termination.release("loss")
        self._close_session()
        self._end_greeting()
        self.answered.set()
        self._left.set()

    def _known_failure(self) -> Failure | None:
        """What ends this rank, rather the program's exception than an abort, and all that HCCL said of it.

        HCCL tells each error once, to the thread that asks first: the program's, torch_npu's, or this one.
        """
        found = self._raised or self._abort
        if found is None:
            return None
        return found.with_codes_of("" if self._abort is None else self._abort.message, self.ring.error)

    def _pause(self) -> float:
        """Seconds until the next look: few at the beginning and at the end of a job."""
        if self._failure is not None:
            return HURRY
        now = time.monotonic()
        if self.session is None:
            begins = self._greeting is not None or now - self._begun < YOUNG_SECONDS
            few = self._greeting is None or self._greeting[1].world_size <= MANY_RANKS
        else:
            begins = self.session.roll.expects_more(now)
            few = self.session.who.world_size <= MANY_RANKS
        if begins and few:  # what befalls a rank before the others know it cannot be told
            return min(self.interval, HURRY)
        if begins or (self.session is not None and self.session.roll.neighbours.polled):
            return min(self.interval, EARLY)
        return self.interval

    def _descriptors(self) -> list[int]:
        if self.session is None:
            return []
        return [*self.session.roll.neighbours.descriptors, *self.session.board.store.descriptors()]

    def _look(self, ready: list[int]) -> None:
        self._follow_groups()
        session = self.session
        if session is None:
            if self._failure is not None and self._nobody_to_tell():
                self.answered.set()
            return
        if not self._has_device:
            self._has_device = self._use_device(session.who.backend)
        now = time.monotonic()
        if self._failure is not None and self._all_fail_alike(session, self._failure, now):
            self.answered.set()
            return
        alarm = session.roll.notice(ready, now)
        alarm = session.standing_alarm() or alarm
        if alarm is None and self._failure is not None:
            alarm = self._tell_failure(session, self._failure, now)
        elif alarm is None and self.wakeup.asked():
            alarm = session.alarm("asked", f"rank {session.who.rank} was asked for a report")
        elif alarm is None:
            alarm = self._overdue(session, now)
        if alarm is not None:
            if alarm.ends_the_job:
                self.termination.hold("alarm")  # before the others are told, which takes time
            self._answer(session, session.sound(alarm))
        else:
            self.termination.release("loss")

    def _nobody_to_tell(self) -> bool:
        """Return whether this rank may end without a session: no group, or rank 0 does not answer."""
        waited = 0.0 if self._failed_at is None else time.monotonic() - self._failed_at
        return self._greeting is None or waited > QUIET_SECONDS

    def _overdue(self, session: Session, now: float) -> Alarm | None:
        overdue = self._clock.look(now)
        if overdue:
            waited = self._clock.longest
            return session.alarm("timeout", f"rank {session.who.rank} has waited for {waited:.0f} s")
        return session.roll.needed_and_gone(self._clock.waits, now)

    def _all_fail_alike(self, session: Session, failure: Failure, now: float) -> bool:
        """Tell the others of the failure; return whether every rank has such an exception.

        Asked before anything else: the others end then, which else would look like a loss.
        """
        with suppress(StoreGoneError):
            if self._told_failure is None:
                self._told_failure = now
                session.board.fail(failure.kind)
            if aborts_soon(failure) or session.standing_alarm() is not None:
                return False
            return session.board.all_fail_alike(failure.kind, session.who.world_size)
        return False

    def _tell_failure(self, session: Session, failure: Failure, now: float) -> Alarm | None:
        """Return an alarm unless the others may still raise such an exception within `QUIET_SECONDS`."""
        with suppress(StoreGoneError):
            # With HCCL a rank whose partner has gone is aborted by torch_npu within half a second.
            alone = aborts_soon(failure) or session.roll.gone or session.board.anyone_left()
            if not alone and now - (self._told_failure or now) < QUIET_SECONDS:
                return None
        first = failure.message.partition("\n")[0][:200]
        return session.alarm("exception", f"rank {session.who.rank} raised {failure.kind}: {first}")

    def _let_it_raise(self) -> None:
        """Wait a moment for this rank's exception, which says more than its place, or than an abort.

        An error of HCCL reaches all members of a group, each when it next asks the device for something.
        """
        deadline = time.monotonic() + RAISE_SECONDS
        while not self._tells_why() and time.monotonic() < deadline:
            time.sleep(HURRY)

    def _tells_why(self) -> bool:
        """Whether the exception has come, and if it is HCCL's also what HCCL told: an abort may have that."""
        known = self._known_failure()
        if self._raised is None or known is None:
            return False
        return not tells_of_hccl(self._raised.message) or known.has_code

    def _answer(self, session: Session, alarm: Alarm) -> None:
        if alarm.reason == "exception" and (self._abort is not None or tells_of_hccl(alarm.sentence)):
            self._let_it_raise()
        waited = self._clock.longest
        answer = Answer(
            session=session,
            ring=self.ring,
            alarm=alarm,
            failure=self._known_failure,
            waited=waited,
            timeout=self._limit(None, session.who.backend),
        )
        answer.give()
        session.next_alarm = alarm.number + 1
        self.wakeup.forget()
        if not alarm.ends_the_job:
            return
        if self._known_failure() is None:
            answer.end_process()
        answer.end_soon()
        # Nothing more is told of a job that has ended. An abort must not wait for Python any more: the main
        # thread may hold the GIL while it waits in torch_npu's shutdown for the very thread that aborts.
        self.release_aborts()
        self.answered.set()

    def _follow_groups(self) -> None:
        """Begin with the default process group, and end with it."""
        found = default_group()
        if self.session is not None and (found is None or found.key != self.session.key):
            self._close_session()
        if self._greeting is not None and (found is None or found.key != self._greeting[0]):
            self._end_greeting()
        if found is None or found.world_size < 2:
            return
        if self._greeting is None:
            self._greeting = found.key, Greeting(found.store, found.rank, found.world_size)
        name = self._greeting[1].look()
        if self.session is None and name is not None:
            self._open_session(found, name, self._greeting[1].take_client())

    def _open_session(self, found: DefaultGroup, name: str, client: Any) -> None:
        who = describe_rank(found)
        self._group_timeout = found.timeout
        board = Board(client, name, who.rank, self._reports())
        self.session = Session(found.key, who, board, Roll(board, who))
        self.session.roll.join()
        stay_outermost(self)

    def _end_greeting(self) -> None:
        """Be done with a group; the others are told also if it ended before this rank had met them."""
        greeting, self._greeting = self._greeting, None
        if greeting is None:
            return
        with suppress(StoreGoneError):
            if greeting[1].name is None and self._known_failure() is None:
                name = greeting[1].wait(GREETING_SECONDS)
                if name is not None:
                    board = Board(greeting[1].take_client(), name, greeting[1].rank, self._reports())
                    board.leave(self.ring.sequences())
                    board.store.close()
        greeting[1].close()

    def _close_session(self) -> None:
        session, self.session = self.session, None
        if session is None:
            return
        session.roll.neighbours.close()
        if self._known_failure() is None:
            with suppress(StoreGoneError):  # it left before: then nobody is there to be told
                session.board.leave(self.ring.sequences())
        session.board.store.close()

    def _use_device(self, backend: str) -> bool:
        """Let this thread ask for the state of the device's events, which CANN answers within a context.

        Returns whether it has the device of the process now, which may not have begun to use one. Never
        another one: a context that this thread makes on device 0 ends the process (`npu_plugins.garbage`).
        """
        module = accelerator() if "hccl" in backend else None
        index = None if module is None else device_index(module)
        if module is not None and index is not None:
            module.set_device(index)
        return index is not None

    def _reports(self) -> Path:
        return Path(self.environ.get(REPORTS) or REPORTS_DEFAULT)

    def _limit(self, timeout: timedelta | None, ring: str) -> float:
        backend = ring or (self.session.who.backend if self.session is not None else "hccl")
        return wait_limit(self.environ, self._group_timeout if timeout is None else timeout, backend=backend)


def find_watch() -> HangWatch | None:
    """Return this process's watch; None if it has none."""
    for thread in threading.enumerate():
        if isinstance(thread, HangWatch) and thread.pid == os.getpid():
            return thread
    return None


def start_watch(environ: Mapping[str, str] = os.environ, *, interval: float = INTERVAL) -> HangWatch | None:
    """Start the watch of this process, unless it runs already or NPU_PLUGINS_HANG_WATCH=0.

    It does nothing until there is a default process group of more than one rank, and is done with it.

    Args:
        environ: with NPU_PLUGINS_HANG_WATCH, NPU_PLUGINS_REPORTS (the folder for reports, by default
            ./npu-plugins-reports), and what `wait_limit` reads.
        interval: seconds between two looks.

    Returns:
        The watch that runs; None if it is switched off.

    Raises:
        DiagnosticsError: NPU_PLUGINS_HANG_WATCH is neither 0 nor 1.
        CommError: HCCL_TIMEOUT is no time.
    """
    switch = environ.get(SWITCH, "1")
    if switch not in ("0", "1"):
        raise DiagnosticsError(f"{SWITCH}={switch} is neither 0 nor 1; give 0 to do without the hang watch")
    if switch == "0":
        return None
    watch = find_watch()
    if watch is None:
        watch = HangWatch(environ, interval=interval)
        watch.start()
        install(watch)
    return watch
