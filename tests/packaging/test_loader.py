"""The simulated CANN beside a real one, and how an error deep in an import is shown."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from npu_plugins import garbage, import_hooks
from npu_plugins.errors import NpuPluginsError, SimulatorError, sentence_of
from npu_plugins.simulator import loader
from tests.packaging.interpreter import run_python, said_by_us


@pytest.fixture
def other_cann(tmp_path: Path) -> Path:
    """A library that bears the name of CANN's."""
    compiler = shutil.which("g++")
    assert compiler, "this test needs g++"
    library = tmp_path / "libascendcl.so"
    command = [
        compiler,
        "-shared",
        "-x",
        "c++",
        os.devnull,
        "-o",
        str(library),
        f"-Wl,-soname,{library.name}",
    ]
    subprocess.run(command, check=True)
    return library


@pytest.mark.npu
def test_the_simulator_refuses_to_join_a_cann_that_is_loaded(other_cann: Path) -> None:
    code = f"import ctypes; ctypes.CDLL({str(other_cann)!r}); import torch"
    done = run_python("-c", code, NPU_SIM="2")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert (
        f"NPU_SIM=2 is set, but this process has already loaded CANN from {other_cann}: unset NPU_SIM" in line
    )


@pytest.mark.npu
def test_a_cann_that_is_only_installed_gives_way_and_the_line_says_so(tmp_path: Path) -> None:
    for name in ("lib64", "runtime", "compiler", "opp"):
        (tmp_path / name).mkdir()
    code = "import torch; print(torch.npu.device_count())"
    paths = {"ASCEND_HOME_PATH": str(tmp_path), "ASCEND_OPP_PATH": str(tmp_path / "opp")}
    done = run_python("-c", code, NPU_SIM="2", **paths)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2"), done.stderr
    [line] = said_by_us(done.stderr)
    assert line.endswith(f"; the CANN in {tmp_path} is not used.")


def test_the_sentence_is_found_under_the_errors_that_wrap_it() -> None:
    wrapped = RuntimeError("Failed to load the backend extension")
    wrapped.__cause__ = ImportError("cannot import")
    wrapped.__cause__.__cause__ = SimulatorError("Say this.")
    assert sentence_of(wrapped) == "Say this."
    assert sentence_of(NpuPluginsError("Or this.")) == "Or this."
    assert sentence_of(RuntimeError("not ours")) is None


def test_what_torch_npu_prints_at_its_import_is_not_the_programs_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPU_SIM", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(import_hooks, "_load_simulator", lambda: None)
    monkeypatch.setattr(loader, "load_kernels", lambda: None)
    monkeypatch.setattr(garbage, "collect_on_device", lambda module: None)
    steps = import_hooks.around_torch_npu(ModuleType("torch_npu"))
    next(steps)
    print("Warning: ASCEND_HOME_PATH environment variable is not set.")
    next(steps, None)
    print("{}")
    steps = import_hooks.around_torch_npu(ModuleType("torch_npu"))
    next(steps)
    steps.close()  # as where the import fails
    print("[]")
    out, err = capsys.readouterr()
    assert (out, err) == ("{}\n[]\n", "Warning: ASCEND_HOME_PATH environment variable is not set.\n")
