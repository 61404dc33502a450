"""Python and the packages that train: are they there, and do they belong together?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from npu_plugins.diagnostics.doctor import cann, versions
from npu_plugins.diagnostics.doctor.checks.platform import is_there
from npu_plugins.diagnostics.doctor.finding import Finding, error, ok, warning
from npu_plugins.diagnostics.doctor.machine import Machine
from npu_plugins.diagnostics.doctor.tables import Pair, compatibility

if TYPE_CHECKING:
    from packaging.requirements import Requirement  # imported on use, as in `versions`

_LEAST_PYTHON = (3, 10)
_BESIDE_TORCH = ("torch_npu", "torchvision", "torchaudio", "npu-plugins")
FRAMEWORKS = ("deepspeed", "transformers", "accelerate", "peft", "datasets", "safetensors", "numpy")


def python(machine: Machine) -> Iterator[Finding]:
    """Python is new enough for us, and torch_npu has a wheel for it."""
    check = "packages.python"
    text = ".".join(map(str, machine.python))
    torch = machine.package_version("torch")
    served = compatibility().pythons(torch) if torch else None
    if machine.python[:2] < _LEAST_PYTHON:
        yield error(
            check, f"This is Python {text}; npu-plugins needs 3.10 or newer.", "Use Python 3.10 or newer."
        )
    elif served is not None and text.rpartition(".")[0] not in served:
        yield error(
            check,
            f"This is Python {text}; torch_npu for torch {torch} is made for {', '.join(served)}.",
            f"Use Python {served[-1]}, or a torch and torch_npu that serve this one.",
        )
    else:
        yield ok(check, f"Python {text}.")


def torch_pair(machine: Machine) -> Iterator[Finding]:
    """torch and torch_npu are installed, and built for each other."""
    check = "packages.torch_npu"
    torch, torch_npu = machine.package_version("torch"), machine.package_version("torch_npu")
    if torch is None:
        yield error(
            "packages.torch",
            "torch is not installed for this Python.",
            "Install torch, and the torch_npu that belongs to it: requirements/tested.txt names a"
            " tested pair.",
        )
        return
    yield ok("packages.torch", f"torch {torch}.")
    release = torch.partition("+")[0]
    if torch_npu is None:
        row = _row_for(machine, torch)
        choice = row.torch_npu if row else f"{versions.series(release)}.*"
        yield error(
            check,
            f"torch {torch} is installed, torch_npu is not: DeepSpeed and the Trainer would use the CPU.",
            f"pip install torch_npu=={choice}" + (f" (for CANN {row.cann})." if row else "."),
        )
    elif not versions.same_release(torch, torch_npu):
        yield error(
            check,
            f"torch {torch} and torch_npu {torch_npu} do not belong together: importing torch_npu fails.",
            f"pip install torch_npu=={versions.series(torch)}.*, or torch=={versions.series(torch_npu)}.*.",
        )
    elif _base(torch) != _base(torch_npu):
        yield warning(
            check,
            f"torch_npu {torch_npu} is built for torch {_base(torch_npu)}, and this is torch {torch}.",
            f"pip install torch=={_base(torch_npu)}.",
        )
    else:
        yield ok(check, f"torch_npu {torch_npu} is built for torch {release}.")


def frameworks(machine: Machine) -> Iterator[Finding]:
    """DeepSpeed, transformers, accelerate and the like are there and as new as npu-plugins asks."""
    tested = compatibility().content["tested"]
    wanted = _requirements(machine)
    for name in FRAMEWORKS:
        check, version = f"packages.{name}", machine.package_version(name)
        asked = wanted.get(name)
        if version is None:
            if asked is not None:
                yield error(
                    check, f"{name} is not installed.", f"pip install '{asked.name}{asked.specifier}'."
                )
        elif asked is not None and not asked.specifier.contains(version, prereleases=True):
            yield error(
                check,
                f"{name} {version} is installed; npu-plugins needs {name}{asked.specifier}.",
                f"pip install '{name}{asked.specifier}'.",
            )
        else:
            yield ok(check, f"{name} {version}" + _beside_tested(version, tested.get(name)))


def requirements(machine: Machine) -> Iterator[Finding]:
    """What the packages that train ask of others is met: pip tells it once, in between, and goes on."""
    check, fine = "packages.requirements", True
    environment = {
        "python_version": ".".join(map(str, machine.python[:2])),
        "python_full_version": ".".join(map(str, machine.python)),
        "platform_machine": machine.architecture,
        "platform_system": machine.system,
    }
    for name in (*FRAMEWORKS, *_BESIDE_TORCH):
        version = machine.package_version(name)
        if version is None:
            continue
        for asked in _parsed(machine.requirements(name)):
            if asked.marker is not None and not asked.marker.evaluate({**environment, "extra": ""}):
                continue
            if (name, asked.name) == ("torch_npu", "torch") or (
                name == "npu-plugins" and asked.name in ("torch", *FRAMEWORKS)
            ):
                continue  # `torch_pair` and `frameworks` look at these
            have = machine.package_version(asked.name)
            if have is not None and asked.specifier.contains(have, prereleases=True):
                continue
            fine = False
            wanted = f"{asked.name}{asked.specifier}"
            yield warning(
                check,
                f"{name} {version} asks for {wanted}, "
                + ("which is not installed." if have is None else f"and {have} is installed."),
                f"pip install '{wanted}', or another {name}.",
            )
    if fine:
        yield ok(check, "What these packages ask of others is met.")


def for_cann(machine: Machine) -> Iterator[Finding]:
    """The Python packages that CANN's installation guide asks for are there, and a numpy that it can use."""
    if not is_there(machine):
        return
    table = compatibility().content
    missing = [name for name in table["cann_python"] if machine.package_version(name) is None]
    if missing:
        yield warning(
            "packages.for_cann",
            "CANN asks for Python packages, for its operator compiler, that are not installed:"
            f" {', '.join(missing)}.",
            f"pip install {' '.join(missing)}.",
        )
    else:
        yield ok("packages.for_cann", "The Python packages that CANN asks for are installed.")
    installed, numpy, limit = cann.find(machine), machine.package_version("numpy"), table["numpy"]
    if installed is None or installed.version is None or numpy is None:
        return
    have, below = versions.parse(numpy), versions.parse(limit["below"])
    series, last = versions.parse(installed.series or ""), versions.parse(limit["up_to_cann"])
    if have is None or below is None or series is None or last is None:
        return
    old_python = machine.python[:2] <= tuple(map(int, limit["up_to_python"].split(".")))
    if old_python and series <= last and have >= below:
        yield warning(
            "packages.numpy_for_cann",
            f"numpy {numpy} is installed; CANN {installed.version} with this Python asks for"
            f" numpy<{limit['below']}.",
            f"pip install 'numpy<{limit['below']}', if its operator compiler fails in numpy.",
        )


def _row_for(machine: Machine, torch: str) -> Pair | None:
    """Return the torch_npu for a torch: the one for the CANN that is here, else the newest."""
    rows, installed = compatibility().rows_for(torch), cann.find(machine)
    version = installed.version if installed and installed.version else ""
    fitting = [row for row in rows if versions.same_release(row.cann, version)]
    return next(iter(fitting or rows), None)


def _base(version: str) -> str:
    parsed = versions.parse(version)
    return parsed.base_version if parsed else version


def _beside_tested(version: str, tested: str | None) -> str:
    have, known = versions.parse(version), versions.parse(tested or "")
    if have is None or known is None or have == known:
        return "."
    return (
        f" ({'newer' if have > known else 'older'} than {tested}, the one that npu-plugins is tested with)."
    )


def _requirements(machine: Machine) -> dict[str, Requirement]:
    """What npu-plugins itself asks for, by package, without its extras."""
    asked = _parsed(machine.requirements("npu-plugins"))
    return {a.name.lower(): a for a in asked if a.marker is None or "extra" not in str(a.marker)}


def _parsed(texts: Iterable[str]) -> Iterator[Requirement]:
    """Read requirements; what an old package writes in a form that is no longer one is passed over."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in texts:
        with contextlib.suppress(InvalidRequirement):
            yield Requirement(text)
