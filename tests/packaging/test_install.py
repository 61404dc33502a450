"""Installing and uninstalling as pip does it, plain and editable, in an empty environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.interpreter import clean_environment, run_python

ROOT = Path(__file__).parents[2]
PACKAGES = ("npu_plugins", "ds_configs", "hf_integration")
FOUND = (
    "import sys;"
    "print([type(f).__module__ for f in sys.meta_path if getattr(f, 'is_npu_plugins_finder', False)])"
)


def pip(*arguments: str) -> str:
    """Run pip without any index; returns what it printed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what setup.py packs, so that the build writes nothing into the repository."""
    copy = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(params=["plain", "editable"])
def wheel(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Path:
    """The wheel that `pip install .` or `pip install -e .` makes."""
    hook = "build_wheel" if request.param == "plain" else "build_editable"
    code = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    done = run_python("-c", code, str(tmp_path), cwd=source)
    assert done.returncode == 0, done.stderr
    [made] = tmp_path.glob("*.whl")
    return made


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """The Python of an empty virtual environment."""
    venv.create(tmp_path / "env", symlinks=True)
    yield tmp_path / "env" / "bin" / "python"


def site_packages(python: Path) -> Path:
    """Where packages of this environment are."""
    return Path(
        run_python("-c", "import site; print(site.getsitepackages()[0])", python=python).stdout.strip()
    )


def test_install_and_uninstall(wheel: Path, environment: Path, tmp_path: Path) -> None:
    site = site_packages(environment)
    (site / "another.py").touch()  # pip deletes the folder with its last file
    before = {path.name for path in site.iterdir()}
    pip("--python", str(environment), "install", "--no-deps", "--no-index", str(wheel))
    assert (site / "npu_plugins.pth").is_file()
    started = run_python("-c", FOUND, python=environment, cwd=tmp_path)
    assert (started.stdout, started.stderr) == ("['npu_plugins.autoload']\n", "")

    for name in PACKAGES:
        assert run_python("-c", f"import {name}", python=environment, cwd=tmp_path).returncode == 0
    code = (
        "from importlib.resources import files;"
        "print((files('npu_plugins') / 'simulator/csrc/runtime/sim.h').is_file(),"
        " (files('ds_configs') / 'presets/zero2.json').is_file())"
    )
    assert run_python("-c", code, python=environment, cwd=tmp_path).stdout == "True True\n"
    code = (
        "from importlib.metadata import entry_points; [hook] = entry_points(group='torch.backends');"
        "print(hook.load().__name__)"
    )
    assert run_python("-c", code, python=environment, cwd=tmp_path).stdout == "torch_backend\n"
    command = environment.with_name("npu-plugins")
    assert subprocess.run([command, "--version"], capture_output=True, text=True).stdout.startswith(
        "npu-plugins "
    )

    pip("--python", str(environment), "uninstall", "--yes", "npu-plugins")
    assert {path.name for path in site.iterdir()} == before
    gone = run_python("-c", FOUND, python=environment, cwd=tmp_path)
    assert (gone.stdout, gone.stderr) == ("[]\n", "")


def test_a_deleted_checkout_leaves_the_interpreter_alone(
    source: Path, environment: Path, tmp_path: Path
) -> None:
    """Of an editable install, only the two .pth files are left then."""
    site = site_packages(environment)
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1], run_name='not_main')['PTH'], end='')"
    with_setup_disabled = f"import setuptools; setuptools.setup = lambda **_: None; {code}"
    content = run_python("-c", with_setup_disabled, str(source / "setup.py"), cwd=source).stdout
    assert content.startswith("import ")
    (site / "npu_plugins.pth").write_text(content)
    (site / "__editable__.npu_plugins.pth").write_text(str(tmp_path / "deleted"))
    started = run_python("-c", FOUND, python=environment, cwd=tmp_path)
    assert (started.returncode, started.stdout, started.stderr) == (0, "[]\n", "")
