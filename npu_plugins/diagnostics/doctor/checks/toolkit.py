"""CANN itself: is it whole, and has set_env.sh been sourced in this shell?"""

from __future__ import annotations

import os
from collections.abc import Iterator

from npu_plugins.diagnostics.doctor import cann, driver, npu_smi, versions
from npu_plugins.diagnostics.doctor.checks.platform import is_there
from npu_plugins.diagnostics.doctor.finding import Finding, error, ok, warning
from npu_plugins.diagnostics.doctor.machine import CommandError, Machine
from npu_plugins.diagnostics.doctor.tables import Chip, compatibility

_CORE_PARTS = ("runtime", "compiler", "hccl", "opp", "toolkit", "opp_kernel")


def installation(machine: Machine) -> Iterator[Finding]:
    """CANN is there, with the libraries that torch_npu is linked to, and its operators."""
    check = "cann.installation"
    if not is_there(machine):
        return
    chosen, found = cann.home_in_environment(machine), cann.find(machine)
    if found is None:
        place = (
            f"ASCEND_HOME_PATH is {chosen}, which is no folder"
            if chosen
            else "There is no CANN in the usual places"
        )
        yield error(
            check,
            f"{place}.",
            f"Install CANN's toolkit and operators below {cann.DEFAULT_PREFIX}, or source the"
            " set_env.sh of where it is.",
        )
        return
    missing = [name for name in cann.LIBRARIES if not cann.has_library(machine, found, name)]
    folders = [
        name for name in ("runtime", "compiler", "opp") if not machine.path(f"{found.home}/{name}").is_dir()
    ]
    named = f"CANN {found.version or 'of unknown version'} in {found.home}"
    if missing or folders:
        parts = sorted({cann.LIBRARIES[name] for name in missing} | set(folders))
        lacking = [*missing, *(f"{name}/" for name in folders)]
        yield error(
            check,
            f"{named} is not whole: {', '.join(lacking)} missing (of its {', '.join(parts)}).",
            "Install the Ascend-cann-toolkit package of this version again, to its end, and then"
            " the operators.",
        )
    else:
        yield ok(check, f"{named} has all that torch_npu loads.")
    series = {name: v for name, v in found.parts.items() if name in _CORE_PARTS and versions.parse(v)}
    if len({versions.series(v) for v in series.values()}) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(series.items()))
        yield error(
            "cann.mixed_parts",
            f"The parts of {found.home} are of different releases: {listed}.",
            "Remove this CANN and install toolkit and operators of one release.",
        )


def operators(machine: Machine) -> Iterator[Finding]:
    """The compiled operators of this chip are there: they come in a package of their own."""
    check = "cann.operators"
    found = cann.find(machine)
    if not is_there(machine) or found is None or not machine.path(f"{found.home}/opp").is_dir():
        return
    chip, have = _chip(machine), cann.kernel_chips(machine, found)
    if not machine.path(f"{found.home}/opp/built-in").is_dir() or not have:
        yield error(
            check,
            f"{found.home}/opp has no compiled operators: a toolkit without its second package.",
            f"Install {_operator_package(found, chip)}.",
        )
    elif chip is not None and chip.kernels not in have:
        yield error(
            check,
            f"{found.home}/opp has operators for {', '.join(have)}, and this machine has {chip.kernels}.",
            f"Install {_operator_package(found, chip)}.",
        )
    else:
        yield ok(check, f"Compiled operators for {', '.join(have)} are installed.")


def environment(machine: Machine) -> Iterator[Finding]:
    """set_env.sh has been sourced: without it torch_npu finds no libhccl.so, and CANN no operators."""
    check = "cann.set_env"
    found = cann.find(machine)
    if not is_there(machine) or found is None:
        return
    source = f"source {found.set_env}"
    if cann.home_in_environment(machine) is None:
        yield error(
            check,
            f"CANN is in {found.home}, but set_env.sh has not been sourced in this shell.",
            f"{source}, and put it into the job script: every node and every shell needs it.",
        )
        return
    lacking = []
    opp = machine.setting("ASCEND_OPP_PATH")
    if opp is None or not machine.path(opp).is_dir():
        lacking.append(f"ASCEND_OPP_PATH is {opp + ', which is no folder' if opp else 'not set'}")
    libraries = _folders(machine, "LD_LIBRARY_PATH")
    if not any(machine.path(f"{folder}/{name}").exists() for folder in libraries for name in cann.LIBRARIES):
        lacking.append("no folder of LD_LIBRARY_PATH has libhccl.so and its like")
    if lacking:
        yield error(
            check,
            f"CANN's environment is not whole: {'; '.join(lacking)}.",
            f"{source}, and let nothing after it overwrite these variables.",
        )
        return
    homes = {home for folder in libraries if (home := _home_of(machine, folder)) and home != found.home}
    others = [home for home in sorted(homes) if not _same_place(machine, home, found.home)]
    if others:
        yield warning(
            "cann.two_environments",
            f"LD_LIBRARY_PATH names {', '.join(others)} beside {found.home}: libraries of two CANNs"
            " could mix.",
            f"Start a new shell and {source} once.",
        )
    whole = machine.path(found.home).resolve()
    python = [machine.path(folder).resolve() for folder in _folders(machine, "PYTHONPATH")]
    if not any(folder.is_relative_to(whole) for folder in python):
        yield warning(
            "cann.pythonpath",
            f"PYTHONPATH does not name {found.home}/python/site-packages, where CANN's operator compiler is.",
            f"{source}, and extend PYTHONPATH instead of setting it anew.",
        )
    yield ok(check, f"set_env.sh of {found.home} is sourced.")


def driver_libraries(machine: Machine) -> Iterator[Finding]:
    """The driver's library, which CANN's runtime loads, can be found."""
    check = "cann.driver_library"
    if not is_there(machine) or cann.find(machine) is None:
        return
    folder = f"{driver.prefix(machine)}/driver/lib64"
    places = [f"{folder}/driver", folder, f"{folder}/common", *_folders(machine, "LD_LIBRARY_PATH")]
    if any(machine.path(f"{place}/libascend_hal.so").exists() for place in places):
        yield ok(check, "libascend_hal.so of the driver is there.")
    else:
        yield error(
            check,
            f"There is no libascend_hal.so, neither in {folder} nor in LD_LIBRARY_PATH: CANN cannot"
            " reach the driver.",
            "Install the driver; in a container, mount /usr/local/Ascend/driver of the host.",
        )


def acceleration_library(machine: Machine) -> Iterator[Finding]:
    """ATB, which some fused operators of torch_npu need, is set up where it is installed."""
    check = "cann.atb"
    if not is_there(machine):
        return
    home = machine.setting("ATB_HOME_PATH")
    script = f"{cann.DEFAULT_PREFIX}/nnal/atb/set_env.sh"
    if home is not None and not machine.path(home).is_dir():
        yield warning(
            check,
            f"ATB_HOME_PATH is {home}, which is no folder.",
            f"source {script}, or install Ascend-cann-nnal.",
        )
    elif home is None and machine.path(script).is_file():
        yield warning(
            check,
            "ATB (nnal) is installed, but its set_env.sh has not been sourced: operators such as"
            " npu_grouped_matmul of torch_npu's ATB plug-in are missing.",
            f"source {script}.",
        )
    elif home is not None:
        yield ok(check, f"ATB is set up ({home}).")


def _chip(machine: Machine) -> Chip | None:
    """Return the kind of the NPUs here, by npu-smi, else by the PCI bus."""
    table = compatibility()
    try:
        names = [chip.name for chip in npu_smi.overview(machine).chips]
    except CommandError:
        names = []
    known = [table.chip(name=name) for name in names] + [
        table.chip(pci=card) for card in driver.pci_cards(machine)
    ]
    return next((chip for chip in known if chip is not None), None)


def _operator_package(found: cann.Cann, chip: Chip | None) -> str:
    """Name the package: kernels up to CANN 8.3, ops from 8.5 on."""
    kind, version = chip.package if chip else "<chip>", found.version or "<version>"
    parsed, new_names = versions.parse(version), versions.parse("8.5")
    if parsed is not None and new_names is not None and parsed.release < new_names.release:
        return f"Ascend-cann-kernels-{kind}_{version}"
    return f"Ascend-cann-{kind}-ops_{version}"


def _folders(machine: Machine, variable: str) -> list[str]:
    return [folder for folder in machine.environ.get(variable, "").split(os.pathsep) if folder]


def _home_of(machine: Machine, folder: str) -> str | None:
    """Return the CANN that a folder of libraries belongs to, if it does."""
    home = folder.rstrip("/").removesuffix("/lib64")
    is_cann = home != folder.rstrip("/") and machine.path(f"{home}/opp").is_dir()
    return home if is_cann else None


def _same_place(machine: Machine, one: str, other: str) -> bool:
    return machine.path(one).resolve() == machine.path(other).resolve()
