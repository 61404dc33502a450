"""The pytest side: a lazily started nursery, the worlds forked from it, and what their ranks answer."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import cloudpickle

from tests.harness.outcome import HarnessError, Outcome, RankFailure, describe_exit, tail
from tests.harness.rank import log_path, stack_path
from tests.harness.spec import MAX_WORLD_SIZE, WorldSpec

DEFAULT_TIMEOUT = 60.0
START_TIMEOUT = 120.0
IMPORT_TIMEOUT = 900.0  # the first import of torch may build the simulator
STOP_TIMEOUT = 20.0
DUMP_SECONDS = 1.0
POLL_SECONDS = 0.5
# What the first engine in a process imports in passing, for 3 seconds of each rank: DeepSpeed's check of the
# optimizer loads torch's compiler, and its operators' loader the tools that build extensions.
COMPANIONS = {
    "deepspeed": (
        "deepspeed.runtime.zero.muon.original_muon",
        "deepspeed.module_inject.auto_ep_layer",
        "deepspeed.ops.op_builder.all_ops",
        "torch.utils.cpp_extension",
        "cpuinfo",
    )
}


@dataclass
class World:
    """Forked ranks that wait for functions. Made by `RankPool.world`."""

    pool: RankPool
    key: int
    spec: WorldSpec
    connections: list[Connection | None]
    grace: float = 3.0
    sleepers: frozenset[int] = frozenset()  # ranks that a test puts to sleep: nobody waits for those alone
    exits: dict[int, int] = field(default_factory=dict)  # rank -> exit code, negative for a signal
    broken: bool = False

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.spec.size

    def run(
        self, function: Callable[..., Any], *args: Any, timeout: float = DEFAULT_TIMEOUT, **kwargs: Any
    ) -> list[Any]:
        """`function(*args, **kwargs)` on every rank; its results in the order of ranks.

        Raises RankFailure with every rank's traceback unless all return within `timeout` seconds; a rank that
        is still busy `self.grace` seconds after another one failed counts as hung. After a rank hung or died
        the world is gone, and a further run says so.
        """
        outcomes = self.outcomes(function, *args, timeout=timeout, **kwargs)
        if not all(outcome.ok for outcome in outcomes):
            raise RankFailure(f"{getattr(function, '__qualname__', function)}", outcomes)
        return [outcome.value for outcome in outcomes]

    def outcomes(
        self, function: Callable[..., Any], *args: Any, timeout: float = DEFAULT_TIMEOUT, **kwargs: Any
    ) -> list[Outcome]:
        """Like `run`, but returns what became of each rank instead of raising."""
        self.begin(function, *args, **kwargs)
        return self.collect(timeout)

    def begin(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Let the ranks run `function`; `collect` takes the outcomes, once other worlds have begun too."""
        if self.broken:
            raise HarnessError(
                "This world lost a rank in an earlier run; restart it or ask the pool for a new one."
            )
        payload = dump_by_value(function, args, kwargs)
        for connection in self.connections:
            if connection is not None:
                connection.send_bytes(payload)

    def collect(self, timeout: float) -> list[Outcome]:
        """Wait for one outcome per rank; kills the world if a rank died or hangs."""
        done: dict[int, Outcome] = {}
        deadline = time.monotonic() + timeout
        awaited = set(range(self.size)) - self.sleepers
        while not awaited <= done.keys() and time.monotonic() < deadline:
            failed_before = any(not outcome.ok for outcome in done.values())
            self._receive(done, min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
            if not failed_before and any(not outcome.ok for outcome in done.values()):
                deadline = min(deadline, time.monotonic() + self.grace)
        if len(done) < self.size or any(outcome.kind == "died" for outcome in done.values()):
            self._give_up(done)
        return [self._with_log(done[rank]) for rank in range(self.size)]

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Let the ranks leave their process group and exit; kills those that do not."""
        for rank, connection in enumerate(self.connections):
            if connection is not None and rank not in self.exits:
                try:
                    connection.send_bytes(b"")
                except OSError:
                    self.broken = True
        deadline = time.monotonic() + timeout
        while len(self.exits) < self.size and time.monotonic() < deadline and not self.broken:
            self.pool.pump(POLL_SECONDS)
        self.kill()

    def restart(self) -> None:
        """Replace the ranks by fresh ones, whatever state they are in."""
        self.kill()
        fresh = self.pool.open(replace(self.spec, directory="", address=""))
        self.pool.adopt(self, fresh)
        self.key, self.spec, self.connections = fresh.key, fresh.spec, fresh.connections
        self.exits, self.broken = fresh.exits, False

    def kill(self) -> None:
        """SIGKILL what is left of the ranks and of their children, and forget the world."""
        self._kill_ranks()
        for connection in self.connections:
            if connection is not None:
                connection.close()
        self.pool.forget(self)

    def _kill_ranks(self) -> None:
        self.broken = True
        deadline = time.monotonic() + STOP_TIMEOUT
        while len(self.exits) < self.size and self.pool.alive:
            self.pool.send(("kill", self.key))
            self.pool.pump(POLL_SECONDS)
            if time.monotonic() > deadline:
                raise HarnessError(f"Ranks of world {self.key} survived SIGKILL for {STOP_TIMEOUT:.0f} s.")

    def signal(self, number: int, rank: int) -> None:
        """Send a signal to one rank, as an outside force would."""
        os.kill(self.pool.pids[self.key][rank], number)

    def _receive(self, done: dict[int, Outcome], seconds: float) -> None:
        waiting = {c: rank for rank, c in enumerate(self.connections) if c is not None and rank not in done}
        ready = wait([*waiting, self.pool.control], seconds)
        if self.pool.control in ready:
            self.pool.pump(0)
        for connection, rank in waiting.items():
            # A rank's last words are read even if its death is known already.
            if connection in ready or rank in self.exits:
                outcome = self._read(connection, rank)
                if outcome is not None:
                    done[rank] = outcome
        for rank, connection in enumerate(self.connections):
            if connection is None and rank in self.exits and rank not in done:
                done[rank] = self._dead(rank)

    def _read(self, connection: Connection, rank: int) -> Outcome | None:
        try:
            if connection.poll(0):
                return cloudpickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            # The exit code follows through the nursery; until then the rank has no outcome.
            self.connections[rank] = None
            connection.close()
            return self._dead(rank) if rank in self.exits else None
        return self._dead(rank) if rank in self.exits else None

    def _dead(self, rank: int) -> Outcome:
        stacks = self._stacks(rank)
        text = describe_exit(self.exits[rank]) + (f"\n{stacks}" if stacks else "")
        return Outcome(rank, "died", text=text)

    def _give_up(self, done: dict[int, Outcome]) -> None:
        hung = [rank for rank in range(self.size) if rank not in done and rank not in self.exits]
        if hung:
            self.pool.send(("dump", self.key))
            deadline = time.monotonic() + DUMP_SECONDS
            while time.monotonic() < deadline and not all(self._stacks(rank) for rank in hung):
                time.sleep(0.02)
            time.sleep(0.05)  # the dump is written in pieces; its end carries no mark
        for rank in hung:
            done[rank] = Outcome(rank, "hung", text=self._stacks(rank) or "It did not even dump its stacks.")
        self._kill_ranks()
        for rank in range(self.size):
            done.setdefault(rank, self._dead(rank))

    def _stacks(self, rank: int) -> str:
        path = stack_path(self.spec.directory, rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def _with_log(self, outcome: Outcome) -> Outcome:
        path = log_path(self.spec.directory, outcome.rank)
        log = tail(path.read_text(errors="replace")) if path.exists() else ""
        return replace(outcome, log=log)


class RankPool:
    """Owns the nursery and hands out worlds. Nothing starts before the first world is asked for."""

    def __init__(
        self, env: Mapping[str, str], imports: tuple[str, ...] = ("torch", "torch.distributed")
    ) -> None:
        """`env` is the nursery's whole environment; `imports` is what every rank finds imported."""
        self.env = dict(env)
        self.imports = imports
        self.pids: dict[int, list[int]] = {}
        self.alive = False
        self._worlds: dict[int, World] = {}
        self._keys = 0
        self._control: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._answers: list[tuple] = []

    @property
    def control(self) -> Connection:
        """The line to the nursery."""
        if self._control is None or not self.alive:
            raise HarnessError("The nursery is not running.")
        return self._control

    def preload(self, *names: str) -> None:
        """Import modules in the nursery, so that every later rank has them at no cost."""
        self._start()
        companions = [module for name in names for module in COMPANIONS.get(name.partition(".")[0], ())]
        self.send(("import", (*names, *companions)))
        (error,) = self._answer("ready", IMPORT_TIMEOUT)
        if error:
            self.close()
            raise HarnessError(f"The nursery cannot import {', '.join(names)}:\n{error}")

    @contextmanager
    def world(self, size: int, backend: str | None = "hccl", **options: Any) -> Iterator[World]:
        """A new world of `size` ranks for the length of a with block; `options` are WorldSpec's fields."""
        world = self.open(WorldSpec(size=size, backend=backend, **options))
        try:
            yield world
        finally:
            world.stop()

    def open(self, spec: WorldSpec) -> World:
        """Fork the ranks of `spec` and wait until all have joined; RankFailure if one does not."""
        self._start()
        in_use = sum(world.size for world in self._worlds.values())
        if in_use + spec.size > 2 * MAX_WORLD_SIZE:
            raise HarnessError(
                f"{in_use} ranks are alive already; {spec.size} more would swamp this machine."
            )
        self._keys += 1
        key = self._keys
        directory = Path(str(self._directory)) / f"world{key}"
        directory.mkdir()
        spec = replace(spec, directory=str(directory), address=str(directory / "ranks.sock"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(spec.address)
            listener.listen(spec.size)
            listener.settimeout(POLL_SECONDS)
            self.send(("spawn", key, spec))
            world = World(self, key, spec, [None] * spec.size)
            self._worlds[key] = world
            _, self.pids[key] = self._answer("spawned", START_TIMEOUT)
            self._connect(world, listener)
        outcomes = world.collect(START_TIMEOUT)
        if not all(outcome.ok for outcome in outcomes):
            world.kill()
            raise RankFailure(f"Joining a {spec.backend} world", outcomes)
        return world

    def _connect(self, world: World, listener: socket.socket) -> None:
        """Accept every rank that lives long enough to call in; `collect` tells of the others."""
        deadline = time.monotonic() + START_TIMEOUT
        missing = world.size
        while missing > len(world.exits) and time.monotonic() < deadline:
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                self.pump(0)
                continue
            connection = Connection(accepted.detach())
            world.connections[connection.recv()] = connection
            missing -= 1

    def send(self, message: tuple) -> None:
        """One message to the nursery."""
        self.control.send(message)

    def pump(self, seconds: float) -> None:
        """Take in what the nursery has to tell, waiting at most `seconds` for something."""
        try:
            while self.control.poll(seconds):
                message = self.control.recv()
                if message[0] == "exited":
                    _, key, rank, status = message
                    if key in self._worlds:
                        self._worlds[key].exits[rank] = status
                else:
                    self._answers.append(message)
                seconds = 0
        except (EOFError, ConnectionResetError):
            self.alive = False
            raise HarnessError("The nursery died; its output is above.") from None

    def adopt(self, world: World, fresh: World) -> None:
        """Let `world` stand for `fresh` from now on."""
        self._worlds[fresh.key] = world

    def forget(self, world: World) -> None:
        """Drop a world whose ranks are gone."""
        self._worlds.pop(world.key, None)
        self.pids.pop(world.key, None)
        shutil.rmtree(world.spec.directory, ignore_errors=True)

    def close(self) -> None:
        """Stop all worlds and the nursery."""
        if self._process is None:
            return
        for world in list(self._worlds.values()):
            world.kill()
        if self._control is not None:
            self._control.close()
        self.alive = False
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        shutil.rmtree(str(self._directory), ignore_errors=True)

    def _start(self) -> None:
        if self.alive:
            return
        self._directory = Path(tempfile.mkdtemp(prefix="ranks-"))
        self._control, theirs = Pipe()
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=root,
            env=self.env,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.alive = True
        self.preload(*self.imports)

    def _answer(self, kind: str, timeout: float) -> tuple:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.pump(POLL_SECONDS)
            for message in self._answers:
                if message[0] == kind:
                    self._answers.remove(message)
                    return message[1:]
        raise HarnessError(f"The nursery did not answer {kind!r} within {timeout:.0f} s.")


def dump_by_value(function: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any]) -> bytes:
    """Pickle a call so that a rank need not import the test module (and pytest with it)."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or not module.__name__.rpartition(".")[2].startswith("test_"):
        return cloudpickle.dumps((function, args, dict(kwargs)))
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((function, args, dict(kwargs)))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
