"""torch_npu and CANN, CANN and driver, driver and firmware: does each belong to the next?"""

from __future__ import annotations

from collections.abc import Iterator

from npu_plugins.diagnostics.doctor import cann, driver, versions
from npu_plugins.diagnostics.doctor.checks.platform import is_there
from npu_plugins.diagnostics.doctor.finding import Finding, error, ok, warning
from npu_plugins.diagnostics.doctor.machine import Machine
from npu_plugins.diagnostics.doctor.tables import Pair, compatibility


def torch_npu_and_cann(machine: Machine) -> Iterator[Finding]:
    """torch_npu is made for this CANN."""
    check = "pairs.torch_npu_cann"
    installed, torch_npu = cann.find(machine), machine.package_version("torch_npu")
    if not is_there(machine) or installed is None or torch_npu is None:
        return
    have = versions.parse(installed.version or "")
    if have is None:
        yield warning(
            check,
            f"The CANN in {installed.home} does not tell its version (no ascend_*_install.info, no"
            " version.cfg).",
            "Install CANN's toolkit anew: an installation that was cut short looks like this.",
        )
        return
    row = compatibility().row(torch_npu)
    if row is None:
        yield _unknown(check, torch_npu, installed)
        return
    made_for = versions.parse(row.cann)
    pair = f"torch_npu {torch_npu} is made for CANN {row.cann}"
    if versions.same_release(row.cann, installed.version or ""):
        yield ok(check, f"{pair}, and this is {installed.version}.")
    elif any(versions.parse(also) == have for also in compatibility().also_with(row.release)):
        yield ok(check, f"{pair}, and said to run with {installed.version} too.")
    elif made_for is not None and have < made_for:
        yield error(
            check,
            f"{pair}, and this is the older {installed.version}: functions that it calls are missing.",
            f"Install CANN {row.cann}, or {_for_cann(installed)}.",
        )
    else:
        yield warning(
            check,
            f"{pair}, and this is the newer {installed.version}.",
            f"If calls of operators fail, install CANN {row.cann}, or {_for_cann(installed)}.",
        )


def cann_and_driver(machine: Machine) -> Iterator[Finding]:
    """The driver is one that this CANN runs with."""
    check = "pairs.cann_driver"
    if not is_there(machine):
        return
    found, installed = driver.find(machine), cann.find(machine)
    if found is None:
        yield warning(
            check,
            f"There is no {driver.prefix(machine)}/driver/version.info, so the driver's version is"
            " not known.",
            "Install the driver; in a container, mount /usr/local/Ascend/driver of the host,"
            " and /etc/ascend_install.info.",
        )
        return
    known = compatibility().drivers(installed.version) if installed and installed.version else None
    have = versions.parse(found.version)
    if installed is None or known is None or have is None:
        yield ok(check, f"Driver {found.version}; no table says with which CANN it goes.")
        return
    oldest, newest = versions.parse(known.drivers[0]), versions.parse(known.drivers[-1])
    pair = f"CANN {installed.version} is released with driver {known.released_with}"
    if versions.series(found.version) in known.drivers:
        yield ok(check, f"{pair}, and runs with this {found.version}.")
    elif known.whole_list and oldest is not None and have < oldest:
        yield error(
            check,
            f"{pair} and needs {known.drivers[0]} or newer; this is {found.version}.",
            f"Install driver {known.released_with} and its firmware, or a CANN of the driver's time.",
        )
    elif newest is not None and have > newest:
        yield ok(check, f"{pair}; this {found.version} is newer, and newer drivers serve older CANNs.")
    else:
        yield warning(
            check,
            f"{pair}; with {found.version} it is not said to run.",
            f"If devices cannot be opened, install driver {known.released_with}.",
        )


def driver_and_firmware(machine: Machine) -> Iterator[Finding]:
    """The firmware lies in a range that the driver itself names."""
    check = "pairs.driver_firmware"
    found = driver.find(machine)
    if not is_there(machine) or found is None or not found.firmware:
        return
    fits = found.firmware_fits()
    ranges = " or ".join(f"{low} to {high}" for low, high in found.takes_firmware)
    if fits is None:
        yield ok(check, f"Firmware {found.firmware}; driver {found.version} names no range.")
    elif fits:
        yield ok(check, f"Firmware {found.firmware} is one that driver {found.version} takes ({ranges}).")
    else:
        yield error(
            check,
            f"Driver {found.version} takes firmware {ranges}, and this is {found.firmware}: memory"
            " shared between"
            " processes and device numbers fail.",
            f"Install the firmware that was released with driver {found.version}, then restart the machine.",
        )


def _unknown(check: str, torch_npu: str, installed: cann.Cann) -> Finding:
    """No row names this torch_npu: too new for the table, or made by somebody else."""
    newest = Pair(**compatibility().content["torch_npu"][0])
    have, known = versions.parse(torch_npu), versions.parse(newest.torch_npu)
    ours, theirs = versions.parse(installed.version or ""), versions.parse(newest.cann)
    if have is not None and known is not None and have > known and ours is not None and theirs is not None:
        if ours.release[:2] >= theirs.release[:2]:
            return ok(
                check, f"torch_npu {torch_npu} is newer than the table; CANN {installed.version} is new, too."
            )
        return warning(
            check,
            f"torch_npu {torch_npu} is newer than {newest.torch_npu}, which already needs CANN {newest.cann};"
            f" this is {installed.version}.",
            f"Install CANN {newest.cann} or newer, or {_for_cann(installed)}.",
        )
    return warning(
        check,
        f"No table says which CANN torch_npu {torch_npu} is made for; this is {installed.version}.",
        f"Install a released one: {_for_cann(installed)}.",
    )


def _for_cann(installed: cann.Cann) -> str:
    """Say which torch_npu is made for this CANN."""
    rows = [Pair(**row) for row in compatibility().content["torch_npu"]]
    fitting = [row for row in rows if versions.same_release(row.cann, installed.version or "")]
    if not fitting:
        return "a torch_npu made for this CANN"
    row = fitting[0]
    return f"torch_npu {row.torch_npu} with torch {row.torch}, which are made for CANN {row.cann}"
