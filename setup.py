"""Installs the three packages, and the .pth file that lets unmodified programs find the NPU."""

from pathlib import Path

from setuptools import Command, find_packages, setup
from setuptools.command.build import build

ROOT = Path(__file__).parent
# Runs at every interpreter start, so it must be harmless when the package's folder has gone.
PTH = (
    "import sys; exec('try:\\n from npu_plugins.autoload import install\\n"
    "except ImportError:\\n install = None\\nif install: install()')\n"
)


class BuildPth(Command):
    """Puts npu_plugins.pth next to the packages: a file there is neither a module nor package data.

    A sub-command of `build`, as setuptools' SubCommand protocol describes: `pip install .` and `pip install
    -e .` both run it, and uninstalling removes the file because it is part of the wheel.
    """

    user_options: list[tuple[str, str, str]] = []

    def initialize_options(self) -> None:
        """Set what `build` and the editable install fill in."""
        self.editable_mode = False
        self.build_lib = ""

    def finalize_options(self) -> None:
        """Take the folder that becomes site-packages: of the build, or of the editable wheel itself."""
        self.build_lib = self.build_lib or self.get_finalized_command("build").build_lib

    def run(self) -> None:
        """Write the file."""
        target = self._target()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(PTH, encoding="ascii")

    def get_source_files(self) -> list[str]:
        """No source: the content is a constant of this file."""
        return []

    def get_outputs(self) -> list[str]:
        """The file written."""
        return [str(self._target())]

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing is a link to a source file."""
        return {}

    def _target(self) -> Path:
        if self.editable_mode:  # nothing is copied from build_lib then
            return Path(self.get_finalized_command("install").install_lib) / "npu_plugins.pth"
        return Path(self.build_lib) / "npu_plugins.pth"


class Build(build):
    """The usual build, and the .pth file."""

    sub_commands = [*build.sub_commands, ("build_pth", None)]


def version() -> str:
    """Read __version__ without importing the package."""
    for line in (ROOT / "npu_plugins" / "__init__.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("__version__"):
            return line.split('"')[1]
    raise RuntimeError("npu_plugins/__init__.py holds no __version__ line")


setup(
    name="npu-plugins",
    version=version(),
    description="DeepSpeed and Hugging Face training on Ascend NPUs, and a simulated NPU for want of a card",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    package_dir={"": "."},  # an editable install is then a plain path entry: free at interpreter start
    packages=find_packages(include=["npu_plugins*", "ds_configs*", "hf_integration*"]),
    package_data={
        "npu_plugins": [
            "simulator/csrc/**/*.cpp",
            "simulator/csrc/**/*.h",
            "tensor_parallel/model_plans/*.json",
            "diagnostics/doctor/data/*.json",
            "diagnostics/codes/*.json",
        ],
        "ds_configs": ["**/*.json"],
    },
    # Wide on purpose: a user with a card brings the torch and torch_npu pair of the CANN in place. But for
    # transformers: NpuTrainer takes parts of the Trainer that 4.x has not, and 5.20 is the oldest one tested.
    # torch_npu is in the extra "npu" only: it has wheels for Linux alone, and which one fits depends on CANN.
    install_requires=[
        "torch>=2.1",
        "deepspeed>=0.16",
        "transformers>=5.20",
        "accelerate>=1.3",
        "peft>=0.18",
        "datasets>=2.19",
        "safetensors>=0.4.3",
        "numpy",
        "xxhash>=3",
        "psutil",
        "packaging",
        "matplotlib>=3.7",
        "tqdm",
        "rich>=13",
        "hjson>=3.1",
        "jinja2>=3.1.6",
    ],
    extras_require={
        "npu": ['torch_npu>=2.1; sys_platform == "linux"'],
        "tensorboard": ["tensorboard>=2.14"],
        "test": [
            "tensorboard>=2.14",
            "pytest>=8",
            "hypothesis>=6",
            "expecttest",
            "cloudpickle",
            "jsonschema",
            "ruff",
            "mypy",
        ],
    },
    cmdclass={"build": Build, "build_pth": BuildPth},
    entry_points={
        "console_scripts": ["npu-plugins = npu_plugins.cli:main", "ds-config = ds_configs.cli:main"],
        "torch.backends": ["npu_plugins = npu_plugins.autoload:torch_backend"],
    },
    classifiers=[
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    zip_safe=False,
)
