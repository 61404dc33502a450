"""The build cache: what is compiled when, what survives a kill or a race, and what a user is told."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from npu_plugins.errors import SimulatorError
from npu_plugins.simulator.build import clean, ensure_built, find_built
from tests.packaging.interpreter import run_python
from tests.packaging.tiny_simulator import STUBS, compiled, start_build, write_compiler, write_sources

pytestmark = pytest.mark.npu  # the compiler's include paths are torch_npu's
ALL = sorted(["device.cpp", "memory.cpp", "ranks.cpp", *(f"{name}.cpp" for name in STUBS)])


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    """Sources of the tiny simulator."""
    return write_sources(tmp_path / "csrc")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty cache directory that does not exist yet."""
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the recording compiler the one that is used; returns the folder of its record."""
    monkeypatch.setenv("CXX", str(write_compiler(tmp_path)))
    return tmp_path


def ranks_said_by(built: Path) -> str:
    """Call the built libraries from a fresh process: this one may hold the simulator's own."""
    code = f"import ctypes; print(ctypes.CDLL({str(built / 'libhccl.so')!r}).tiny_ranks())"
    return run_python("-c", code).stdout.strip()


def test_libraries_work_and_find_each_other(cache: Path, csrc: Path) -> None:
    built = ensure_built(cache, csrc)
    assert {path.name for path in built.iterdir()} == {
        "libascendcl.so",
        "libhccl.so",
        *(f"{n}.so" for n in STUBS),
    }
    assert ranks_said_by(built) == "8"


def test_a_build_leaves_no_thread_behind(cache: Path, csrc: Path) -> None:
    """A process with a second thread cannot be forked safely, and the tests' ranks are forked."""
    code = (
        "import sys, threading; from pathlib import Path;"
        "from npu_plugins.simulator.build import ensure_built;"
        "ensure_built(Path(sys.argv[1]), Path(sys.argv[2])); print(threading.active_count())"
    )
    assert run_python("-c", code, str(cache), str(csrc)).stdout.strip() == "1"


def test_warm_start_runs_no_compiler(cache: Path, csrc: Path, recording: Path) -> None:
    first = ensure_built(cache, csrc)
    assert compiled(recording) == ALL
    assert ensure_built(cache, csrc) == first == find_built(cache, csrc)
    assert compiled(recording) == []


def test_touching_a_source_rebuilds_nothing(cache: Path, csrc: Path, recording: Path) -> None:
    first = ensure_built(cache, csrc)
    compiled(recording)
    os.utime(csrc / "runtime" / "device.cpp", (1, 1))
    assert ensure_built(cache, csrc) == first
    assert compiled(recording) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [("hccl/ranks.cpp", ["ranks.cpp"]), ("runtime/export.h", ["device.cpp", "memory.cpp"])],
)
def test_a_change_recompiles_what_includes_it(
    cache: Path, csrc: Path, recording: Path, changed: str, expected: list[str]
) -> None:
    first = ensure_built(cache, csrc)
    compiled(recording)
    with open(csrc / changed, "a") as file:
        file.write("// changed\n")
    assert find_built(cache, csrc) is None
    assert ensure_built(cache, csrc) != first
    assert compiled(recording) == expected


def test_processes_that_start_together_build_once(cache: Path, csrc: Path, recording: Path) -> None:
    compiler = write_compiler(recording, before="sleep 0.3")
    racers = [start_build(cache, csrc, compiler) for _ in range(3)]
    outputs = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    assert compiled(recording) == ALL
    assert sum("another process is building" in err for _, err in outputs) == 2


def test_a_killed_build_is_no_build_and_the_next_one_finishes_it(
    cache: Path, csrc: Path, recording: Path
) -> None:
    hung = write_compiler(recording, before='case "$*" in *ranks.cpp*) exec sleep 60;; esac')
    victim = start_build(cache, csrc, hung)
    deadline = time.monotonic() + 30
    record = recording / "compiled"
    while not (record.exists() and "ranks.cpp" in record.read_text()):
        assert time.monotonic() < deadline, "the build never came to ranks.cpp"
        time.sleep(0.05)
    children = Path(f"/proc/{victim.pid}/task")
    sleepers = [int(pid) for task in children.iterdir() for pid in (task / "children").read_text().split()]
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    for pid in sleepers:
        os.kill(pid, signal.SIGKILL)
    assert find_built(cache, csrc) is None
    write_compiler(recording)
    compiled(recording)
    built = ensure_built(cache, csrc)
    assert "ranks.cpp" in compiled(recording)
    assert ranks_said_by(built) == "8"
    assert list((cache / "tmp").iterdir()) == []


def test_clean_frees_what_was_built(cache: Path, csrc: Path) -> None:
    built = ensure_built(cache, csrc)
    size = sum(path.stat().st_size for path in built.iterdir())
    assert clean(cache) > size
    assert find_built(cache, csrc) is None
    assert clean(cache) == 0


def test_no_compiler(cache: Path, csrc: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SimulatorError, match=r"needs a C\+\+20 compiler .* not in PATH: install g\+\+ 11"):
        ensure_built(cache, csrc)


def test_a_compiler_that_does_not_run(cache: Path, csrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(SimulatorError, match=r"/false' does not run .*: install g\+\+ 11 or newer"):
        ensure_built(cache, csrc)


def test_a_source_that_does_not_compile(cache: Path, csrc: Path) -> None:
    (csrc / "runtime" / "device.cpp").write_text("int wrong() { return nothing; }\n")
    with pytest.raises(
        SimulatorError, match=r"could not build device.cpp .*'nothing' was not declared.*build.log"
    ):
        ensure_built(cache, csrc)
    assert "return nothing" in (cache / "build.log").read_text()
    assert find_built(cache, csrc) is None


def test_an_undefined_function_is_found_when_linking(cache: Path, csrc: Path) -> None:
    (csrc / "hccl" / "ranks.cpp").write_text("int nowhere();\nint calls() { return nowhere(); }\n")
    with pytest.raises(SimulatorError, match=r"could not build libhccl.so .*undefined reference to `nowhere"):
        ensure_built(cache, csrc)


def test_a_full_disk(cache: Path, csrc: Path, recording: Path) -> None:
    write_compiler(
        recording, before='case "$*" in *-c*) echo "error: No space left on device" >&2; exit 1;; esac'
    )
    with pytest.raises(
        SimulatorError, match=r"cannot be used \(No space left on device\): free some space .*NPU_SIM_CACHE"
    ):
        ensure_built(cache, csrc)
    write_compiler(recording)
    assert ensure_built(cache, csrc).is_dir()  # and it recovers


def test_a_cache_that_cannot_be_made(csrc: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        SimulatorError, match=r"file/cache cannot be used .*: make it writable, or set NPU_SIM_CACHE"
    ):
        ensure_built(tmp_path / "file" / "cache", csrc)


def test_a_filled_cache_may_be_read_only(
    cache: Path, csrc: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure_built(cache, csrc)
    compiled(recording)
    for stamp in (cache / "stamps").iterdir():
        stamp.unlink()

    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert ensure_built(cache, csrc) == first
    assert compiled(recording) == []
