"""A preflight from meeting to verdict: what each rank does, and what rank 0 makes of it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import ProcessMesh, Topology
from npu_plugins.diagnostics.hang.watch import find_watch
from npu_plugins.diagnostics.preflight import clocks, collectives, links, slow, verdicts
from npu_plugins.diagnostics.preflight.board import Board, StoreLostError
from npu_plugins.diagnostics.preflight.bounded import Done, Worker
from npu_plugins.diagnostics.preflight.compare import Fact, as_message, differing, from_message
from npu_plugins.diagnostics.preflight.place import Place, ended_here, guessed_hosts
from npu_plugins.diagnostics.preflight.report import Finding, PreflightError, Report, counted
from npu_plugins.diagnostics.preflight.termination import HeldTermination
from npu_plugins.diagnostics.preflight.verdicts import LinkWatch, Outcome

GRACE = 2.0
"""Seconds between the end of a rank's time and that of whoever waits for its word."""
END = 5.0
"""Seconds for all ranks to read the end, before rank 0 may take the store away."""


@dataclass(frozen=True)
class Settings:
    """How long a preflight waits, and what it calls slow."""

    limit: float = 120.0
    """Seconds of each phase: for all ranks to come, to make the groups, to communicate."""
    size: int = 4 << 20
    """Of a message by which bandwidth is measured, in bytes."""
    slow_factor: float = 3.0
    """A link is slow if it takes so many times as long as the usual one of its kind."""
    least_gbps: float = 0.0
    """GB/s, each way, below which a link is slow whatever the others do; 0: none."""
    most_skew: float = 1.0
    """Seconds that clocks may be apart."""
    strict: bool = False
    """Whether warnings count as errors."""


def tell_on_stderr(report: Report) -> None:
    """Print a report for people."""
    print(report.text(), file=sys.stderr, flush=True)


@dataclass
class Preflight:
    """One preflight of a job; every rank makes one and calls the same methods in the same order.

    Whatever is found, all ranks end with the same `Report`, which rank 0 alone tells. If rank 0 or the store
    is lost, each of the others tells that.
    """

    store: dist.Store
    """Nothing else uses it at the same time: a `clone()` of the job's, or `open_store`'s."""
    rank: int
    config: ParallelConfig
    settings: Settings = field(default_factory=Settings)
    tell: Callable[[Report], None] = tell_on_stderr
    platform: str = ""
    """What the ranks communicate over, for the report: ``hccl, simulated NPUs``."""
    place: Place | None = None
    """By default that of this process."""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        """Find the place; nothing is sent before `meet`."""
        self.here = self.place or Place.here(self.rank)
        self.world_size = self.config.world_size
        self.topology = Topology(self.config)
        self.report = Report(self.world_size)
        self.board = Board(self.store, self.rank, self.world_size, "preflight")
        self.places: dict[int, Place] = {}
        self.hosts: dict[int, str] = {}
        self._worker: Worker | None = None
        self._termination = HeldTermination(self._somebody_ended)
        self._silent: set[int] = set()

    # Phases

    def meet(self) -> None:
        """Wait until all ranks are there.

        Raises:
            PreflightError: some are not.
        """
        limit, began = self.settings.limit, self.clock()
        self._termination.begin()
        self._try(lambda: self.board.post("meeting", [self.here.to_message(), began]))
        if self.rank == 0:
            self.board.answer("opening", None)
            received = self._try(lambda: self.board.collect("meeting", limit))
            outcome = verdicts.of_meeting(received, began, self.world_size, limit)
            self._know(outcome.next)
            self._answer("meeting", outcome._replace(next=[self._title(), outcome.next]))
        else:
            self._wait("opening", limit)
        self.report.title, places = self._take("meeting", limit + 2 * GRACE)
        self._know(places)

    def compare(self, name: str, facts: Sequence[Fact]) -> None:
        """Compare facts of all ranks.

        Args:
            name: of the phase, in the report.
            facts: of this rank.

        Raises:
            PreflightError: they differ so that the ranks cannot communicate.
        """
        degrees = ", ".join(f"{axis} {self.topology.size(axis)}" for axis in ("tp", "dp", "pp", "ep"))
        facts = [Fact("mesh", "the layout", degrees, mend="give all ranks the same degrees"), *facts]
        limit = self.settings.limit
        if self.rank == 0:
            self.board.answer(f"first {name}", as_message(facts))
            mine: list[Fact] = []
        else:
            mine = differing(facts, from_message(self._wait(f"first {name}", limit)))

        def judge(told: Mapping[int, Any]) -> Outcome:
            return verdicts.of_facts(facts, told, self.topology, self.hosts)

        self._judged(name, Done(as_message(mine)), judge, limit)

    def do(self, name: str, work: Callable[[], Any]) -> Any:
        """Do something in the thread that communicates, and return what it returns here.

        Args:
            name: of the phase.
            work: what to do. If it fails, or does not come back, all ranks are told of which rank.

        Raises:
            PreflightError: it has not been done on all ranks.
        """
        return self._work(name, work, lambda _: Outcome(), value_is_own=True)

    def communicate(self, connect: Callable[[], ProcessMesh], measure: bool = True) -> ProcessMesh:
        """Make the groups, run a collective on each of them, and measure links and clocks.

        Args:
            connect: makes the mesh; called in a thread of its own.
            measure: whether links are measured.

        Raises:
            PreflightError: something does not come back.
        """
        mesh: ProcessMesh = self.do("groups", connect)
        self._work(
            "collectives",
            lambda: collectives.check_groups(mesh, self._at),
            lambda told: verdicts.of_results(told, self.topology, self.hosts),
        )
        if measure:
            self._measure_links(mesh)
        return mesh

    def compare_clocks(self) -> None:
        """Measure how far the clocks of the machines are apart.

        Raises:
            PreflightError: a rank does not answer.
        """
        connection = self.board.another_connection()
        connection.set_timeout(timedelta(seconds=self.settings.limit))
        asked = clocks.one_of_each_machine(self.places)
        self._work(
            "clocks",
            lambda: clocks.measure(connection, self.rank, asked, self.clock),
            lambda told: verdicts.of_clocks(told, self.settings.most_skew, self.hosts),
        )

    def finish(self) -> Report:
        """Let rank 0 tell the report, and return it on all ranks.

        Raises:
            PreflightError: there are errors.
        """
        if self.report.errors:
            self._end()
        self._part()
        return self.report

    # Links

    def _measure_links(self, mesh: ProcessMesh) -> None:
        todo = links.all_links(self.topology)
        if not todo:
            return
        size, connection = self.settings.size, self.board.another_connection()
        connection.set_timeout(timedelta(seconds=self.settings.limit))
        limits = slow.Limits(self.settings.slow_factor, size, self.settings.least_gbps)
        watch = LinkWatch(self.places, limits)
        order = self._work(
            "links",
            lambda: _timings(links.measure_at_once(mesh, todo, size, self._at)),
            lambda told: watch.judge(told, 0),
        )
        again = 0
        while order:
            again += 1
            pairs = [links.Link(axis, low, high) for axis, low, high in order]
            topic = f"links again {again}"

            def work(pairs: list[links.Link] = pairs, topic: str = topic) -> Any:
                return _timings(links.measure_in_turn(mesh, pairs, size, connection, topic, self._at))

            def judge(told: Mapping[int, Any], again: int = again) -> Outcome:
                return watch.judge(told, again)

            order = self._work("links", work, judge, topic=topic)

    def _know(self, places: Mapping[Any, Mapping[str, Any]]) -> None:
        """Take the places of the ranks that have come; JSON has made strings of ranks."""
        self.places = {int(rank): Place(**place) for rank, place in places.items()}
        self.hosts = guessed_hosts(self.places, self.world_size)

    def _title(self) -> str:
        hosts = len({place.machine for place in self.places.values()})
        degrees = " × ".join(f"{axis} {self.topology.size(axis)}" for axis in ("tp", "dp", "pp"))
        platform = f", {self.platform}" if self.platform else ""
        return f"{counted(self.world_size, 'rank')} on {counted(hosts, 'host')}, {degrees}{platform}"

    # How a phase goes

    def _work(
        self,
        name: str,
        work: Callable[[], Any],
        judge: Callable[[Mapping[int, Any]], Outcome],
        *,
        topic: str = "",
        value_is_own: bool = False,
    ) -> Any:
        """Do a phase's work in the thread, and return what rank 0 answers, or the work's own value."""
        self._worker = self._worker or Worker()
        began = time.monotonic()
        done = self._worker.run(work, self.settings.limit, self._somebody_ended)
        sent = done._replace(value=None) if value_is_own else done
        # Whoever has less to do, or fails, is done early: the others have their time all the same.
        left = max(0.0, began + self.settings.limit - time.monotonic())
        answer = self._judged(name, sent, judge, left + GRACE, topic=topic)
        return done.value if value_is_own else answer

    def _judged(
        self,
        name: str,
        done: Done,
        judge: Callable[[Mapping[int, Any]], Outcome],
        limit: float,
        *,
        topic: str = "",
    ) -> Any:
        """Tell rank 0 what became of the work, and return its answer.

        Args:
            name: of the phase, in the report.
            done: what became of it here.
            judge: makes of all ranks' values, by rank, an outcome; on rank 0.
            limit: seconds that other ranks may still take.
            topic: of the messages, by default the name.
        """
        topic, worker = topic or name, self._worker
        step = [worker.steps, worker.step] if worker is not None else [0, ""]
        self._try(lambda: self.board.post(topic, [done.value, done.error, done.stuck, step]))
        if self.rank == 0:
            # Others may have begun later, by as much as they waited for this rank's last answer.
            received = self._try(lambda: self.board.collect(topic, limit + GRACE, self._ended))
            told = {rank: message.value for rank, message in received.items()}
            self._silent = set(range(self.world_size)) - told.keys()
            faults = verdicts.faults(name, told, self.world_size, self.hosts, self._ended)
            outcome = (
                Outcome(findings=faults, stop=True)
                if faults
                else judge({rank: message[0] for rank, message in told.items()})
            )
            self._answer(topic, outcome)
        return self._take(topic, limit + 3 * GRACE + self.settings.limit, name)

    def _answer(self, topic: str, outcome: Outcome) -> None:
        findings = [asdict(finding) for finding in outcome.findings]
        self.board.answer(topic, [outcome.line, outcome.figures, findings, outcome.stop, outcome.next])

    def _take(self, topic: str, limit: float, name: str = "") -> Any:
        """Take rank 0's answer into the report, and end if it says so."""
        line, figures, findings, stop, following = self._wait(topic, limit)
        if line:
            self.report.lines[name or topic] = line
        if figures is not None:
            self.report.figures[name or topic] = figures
        for each in findings:
            level = "error" if self.settings.strict else each["level"]
            self.report.findings.append(Finding(**{**each, "level": level, "ranks": tuple(each["ranks"])}))
        if stop:
            self._end()
        return following

    def _end(self) -> NoReturn:
        watch = find_watch()
        if watch is not None:  # of hangs: what is to be told of this job is told here
            watch.leave()
        self._part()
        raise PreflightError(self.report, stuck=self._worker is not None and self._worker.stuck)

    def _part(self) -> None:
        """Let rank 0 tell the report while all are still there, and then everyone go."""
        if self.rank == 0:
            self.tell(self.report)
            self.board.answer("end", None)
            with contextlib.suppress(StoreLostError):
                self.board.post("end", None)
                # Those who have not come, or say nothing, will not say that they go.
                self.board.collect("end", END, self._silent_or_ended)
        else:
            # Whoever ends before rank 0 has told may take it along: a launcher ends all ranks then.
            self._wait("end", self.settings.limit)
            with contextlib.suppress(StoreLostError):
                self.board.post("end", None)
        self._close()

    def _close(self) -> None:
        self._termination.end()
        if self._worker is not None:
            self._worker.close()

    def _wait(self, topic: str, limit: float) -> Any:
        return self._try(lambda: self.board.wait_for_answer(topic, limit, lambda: bool(self._ended([0]))))

    def _try(self, talk: Callable[[], Any]) -> Any:
        """Talk to the other ranks; if that cannot be done, say so here."""
        try:
            return talk()
        except (StoreLostError, dist.DistError) as error:
            mend = "look at the first error in the log of rank 0"
            what = f"rank {self.rank} (host {self.here.host}): {str(error).splitlines()[0]}"
            self.report.findings.append(Finding("lost", "error", (0,), what, mend))
            self.tell(self.report)
            self._close()
            stuck = self._worker is not None and self._worker.stuck
            raise PreflightError(self.report, stuck=stuck) from error

    def _ended(self, ranks: Collection[int]) -> list[int]:
        return ended_here(ranks, self.places, self.here)

    def _silent_or_ended(self, ranks: Collection[int]) -> set[int]:
        absent = {rank for rank in ranks if rank not in self.places or rank in self._silent}
        return absent | set(self._ended(ranks))

    def _somebody_ended(self) -> bool:
        return bool(self._ended(range(self.world_size)))

    def _at(self, step: str) -> None:
        if self._worker is not None:
            self._worker.at(step)


def _timings(found: Mapping[links.Link, links.Timing]) -> list[list[Any]]:
    return [[*link, *timing] for link, timing in found.items()]
