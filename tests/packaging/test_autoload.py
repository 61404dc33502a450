"""The hooks: what an interpreter start pays for them, and that they leave no trace on what they wrap."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from npu_plugins import autoload, import_hooks
from npu_plugins.launchers import is_launcher
from tests.packaging.interpreter import run_python, said_by_us


def finders() -> list[object]:
    """Our finders on sys.meta_path."""
    return [finder for finder in sys.meta_path if getattr(finder, "is_npu_plugins_finder", False)]


def test_the_pth_file_has_put_one_finder_in_place_and_a_second_call_adds_none() -> None:
    assert len(finders()) == 1
    autoload.install()
    autoload.torch_backend()
    assert len(finders()) == 1


def test_an_interpreter_start_costs_less_than_2_ms() -> None:
    """The .pth line again, caches cold, in CPU time: others at work on the machine must not count."""
    code = (
        "import site, sys, time; from pathlib import Path\n"
        "line = (Path(site.getsitepackages()[0]) / 'npu_plugins.pth').read_text()\n"
        "for name in [n for n in sys.modules if n.startswith('npu_plugins')]: del sys.modules[name]\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, 'is_npu_plugins_finder')]\n"
        "sys.path_importer_cache.clear()\n"
        "start = time.thread_time(); exec(line); cost = time.thread_time() - start\n"
        "assert hasattr(sys.meta_path[0], 'is_npu_plugins_finder'); print(cost * 1e3)"
    )
    costs = [float(run_python("-c", code).stdout) for _ in range(5)]
    assert min(costs) < 2.0, f"ms an interpreter start: {costs}"


def test_an_interpreter_start_imports_nothing_else() -> None:
    code = "import sys; print(sorted(set(sys.modules)))"
    started = set(eval(run_python("-c", code).stdout))
    bare = set(eval(run_python("-S", "-c", code).stdout))
    ours = {name for name in started if name.startswith("npu_plugins")}
    assert ours == {"npu_plugins", "npu_plugins.autoload"}
    assert not {"torch", "importlib.util", "importlib.metadata", "ctypes", "typing", "contextlib"} & (
        started - bare
    )


def test_importing_the_package_is_cheap() -> None:
    done = run_python(
        "-c", "import sys, npu_plugins; print('torch' in sys.modules, 'deepspeed' in sys.modules)"
    )
    assert done.stdout == "False False\n"


def test_a_hooked_module_keeps_its_own_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def around(module: ModuleType) -> object:
        order.append(f"before {hasattr(module, 'value')}")
        yield
        order.append(f"after {module.value}")

    (tmp_path / "hooked_module.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(autoload._HOOKS, "hooked_module", "around_it")
    monkeypatch.setattr(import_hooks, "around_it", around, raising=False)
    module = importlib.import_module("hooked_module")
    assert order == ["before False", "after 3"]
    assert isinstance(module.__loader__, importlib.machinery.SourceFileLoader)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__


def test_a_hook_is_closed_when_its_module_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def around(module: ModuleType) -> object:
        try:
            yield
            order.append("never")
        finally:
            order.append("closed")

    (tmp_path / "failing_module.py").write_text("raise ValueError('as written')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(autoload._HOOKS, "failing_module", "around_it")
    monkeypatch.setattr(import_hooks, "around_it", around, raising=False)
    with pytest.raises(ValueError, match="as written"):
        importlib.import_module("failing_module")
    assert order == ["closed"]
    assert "failing_module" not in sys.modules


def test_a_found_spec_still_tells_about_the_source() -> None:
    spec = importlib.util.find_spec("deepspeed.accelerator.real_accelerator")
    assert spec is not None
    assert spec.origin is not None
    assert spec.origin.endswith("real_accelerator.py")
    assert "SUPPORTED_ACCELERATOR_LIST" in spec.loader.get_source(spec.name)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (["python", "/env/bin/deepspeed", "--num_gpus", "2", "train.py"], True),
        (["python", "-u", "-m", "deepspeed.launcher.launch", "train.py"], True),
        (["python", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "/env/bin/torchrun", "train.py"], True),
        (["python", "train.py", "deepspeed"], False),
        (["python", "-m", "pytest", "-m", "torch.distributed.run"], False),
        (["python", "-c", "pass"], False),
        (["python"], False),
    ],
)
def test_launchers_are_told_from_programs(command: list[str], launcher: bool) -> None:
    assert is_launcher(command) is launcher


@pytest.mark.npu
@pytest.mark.parametrize("switch", ["1", "0"])
def test_the_simulated_npu_is_announced_once_and_found_by_deepspeed(switch: str) -> None:
    code = (
        "import subprocess, sys\n"
        "from deepspeed.accelerator import get_accelerator as get\n"
        "print(type(get()).__module__, get().device_count())\n"
    )
    if switch == "1":  # a process that it starts does not announce them again
        code += "subprocess.run([sys.executable, '-c', 'import torch_npu'], check=True)"
    done = run_python("-c", code, NPU_SIM="3", NPU_SIM_HBM="2GiB", TORCH_DEVICE_BACKEND_AUTOLOAD=switch)
    assert done.returncode == 0, done.stderr
    assert "npu_plugins.accelerator.npu_accelerator 3" in done.stdout
    [line] = said_by_us(done.stderr)
    assert line.startswith("npu-plugins: 3 simulated NPUs (2 GiB each)")


@pytest.mark.npu
def test_only_rank_0_announces() -> None:
    done = run_python(
        "-c", "import torch; print(torch.npu.device_count())", NPU_SIM="2", RANK="1", LOCAL_RANK="1"
    )
    assert (done.returncode, done.stdout.splitlines()[-1], said_by_us(done.stderr)) == (0, "2", [])
