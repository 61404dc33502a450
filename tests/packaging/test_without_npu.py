"""What a user sees with torch_npu but neither CANN nor NPU_SIM, and with settings that cannot work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.packaging.interpreter import run_python, said_by_us

pytestmark = pytest.mark.npu
MEND = "source CANN's set_env.sh on a machine with an NPU, or set NPU_SIM=<number> to simulate that many NPUs"
WHY_NO_CANN = "from npu_plugins.availability import why_no_cann; print(why_no_cann() or '')"
ACCELERATOR = "from deepspeed.accelerator import get_accelerator as get; print(get()._name)"


@pytest.fixture(scope="module", autouse=True)
def _no_cann() -> None:
    """Skip where CANN is installed. Asked in a fresh process: this one may hold the simulated libraries."""
    if not run_python("-c", WHY_NO_CANN).stdout.strip():
        pytest.skip("CANN is installed here: there is an NPU to be had")


def test_import_torch_works_and_changes_no_setting() -> None:
    code = (
        "import os, sys, torch; print(torch.ones(2).sum().item(), 'torch_npu' in sys.modules,"
        " os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))"
    )
    done = run_python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2.0 False None\n", "")


def test_import_torch_npu_says_what_to_do() -> None:
    done = run_python("-c", "import torch_npu")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "npu-plugins: error: torch_npu needs CANN, which cannot be loaded (libascendcl.so: "
    )
    assert line.endswith(f"{MEND}.")


def test_code_that_treats_torch_npu_as_optional_goes_on() -> None:
    code = (
        "try:\n import torch_npu\nexcept ImportError as error:\n print('optional', error.__class__.__name__)"
    )
    done = run_python("-c", code)
    assert (done.returncode, done.stdout) == (0, "optional NpuUnavailableError\n")


def test_asking_deepspeed_for_an_npu_fails() -> None:
    done = run_python("-c", ACCELERATOR, DS_ACCELERATOR="npu")
    assert done.returncode == 1
    [line] = said_by_us(done.stderr)
    assert line.startswith("npu-plugins: error: DS_ACCELERATOR=npu, but torch_npu needs CANN")
    assert line.endswith(f"{MEND}.")
    assert "Traceback" not in done.stderr


def test_a_rank_that_asks_deepspeed_for_the_cpu_gets_it_quietly() -> None:
    done = run_python("-c", ACCELERATOR, DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0")
    assert (done.returncode, done.stdout.splitlines()[-1], said_by_us(done.stderr)) == (0, "cpu", [])


def test_deepspeed_by_itself_warns_that_it_uses_the_cpu() -> None:
    done = run_python("-c", ACCELERATOR)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "cpu")
    [line] = said_by_us(done.stderr)
    assert line.startswith("npu-plugins: warning: DeepSpeed uses the CPU: torch_npu needs CANN")


def test_a_rank_never_falls_back_to_the_cpu() -> None:
    done = run_python("-c", ACCELERATOR, RANK="0", LOCAL_RANK="0")
    assert done.returncode == 1
    [line] = said_by_us(done.stderr)
    assert line.startswith("npu-plugins: error: This job would train on the CPU: torch_npu needs CANN")
    assert line.endswith("or set DS_ACCELERATOR=cpu to train on the CPU on purpose.")


def test_the_deepspeed_launcher_refuses(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    launcher = Path(sys.executable).with_name("deepspeed")
    done = run_python(str(launcher), "--num_gpus", "2", str(script))
    assert done.returncode == 1
    assert "trained" not in done.stdout
    [line] = said_by_us(done.stderr)
    assert line.startswith("npu-plugins: error: This job would train on the CPU")


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"NPU_SIM": "abc"}, "NPU_SIM='abc' is not a number: set it to how many NPUs to simulate"),
        ({"NPU_SIM": "0"}, "NPU_SIM=0 is out of range"),
        ({"NPU_SIM": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}, "at least 3 ranks on this machine"),
        ({"NPU_SIM": "2", "CXX": "no-such-g++"}, "CXX='no-such-g++' is not in PATH: install g++ 11 or newer"),
        (
            {"NPU_SIM": "2", "NPU_SIM_CACHE": "/dev/null/cache"},
            "/dev/null/cache cannot be used (Not a directory)",
        ),
    ],
    ids=["not-a-number", "zero", "ranks", "compiler", "cache"],
)
@pytest.mark.parametrize("module", ["torch", "torch_npu"])
def test_a_wrong_setting_ends_the_import_with_one_sentence(
    module: str, environ: dict[str, str], sentence: str
) -> None:
    done = run_python("-c", f"import {module}", **environ)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("npu-plugins: error: ")
    assert sentence in line


def test_a_wrong_setting_is_a_catchable_error() -> None:
    code = (
        "from npu_plugins.errors import SimulatorError\n"
        "try:\n import torch\nexcept SimulatorError as error:\n print('caught:', error)"
    )
    done = run_python("-c", code, NPU_SIM="0")
    assert (done.returncode, done.stdout[:18]) == (0, "caught: NPU_SIM=0 ")


def test_a_pair_that_does_not_match(tmp_path: Path) -> None:
    other = tmp_path / "torch_npu-2.12.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.12.0\n")
    done = run_python("-c", "import torch", NPU_SIM="2", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "and torch_npu 2.12.0 do not belong together: install torch_npu 2." in line


def test_torch_npu_is_not_installed(tmp_path: Path) -> None:
    """A finder that hides torch_npu stands for a Python it has no wheel for."""
    code = (
        "import sys, importlib.machinery as machinery\n"
        "class Without(machinery.PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        return None if name == 'torch_npu' else super().find_spec(name, path, target)\n"
        "sys.meta_path = [Without if f is machinery.PathFinder else f for f in sys.meta_path]\n"
        "import torch\n"
    )
    done = run_python("-c", code, NPU_SIM="2")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "Simulated NPUs need torch_npu, which is not installed for this Python" in line
    assert line.endswith("or unset NPU_SIM to run without an NPU.")
