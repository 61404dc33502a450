"""The driver and firmware of the NPUs, and the devices that the kernel shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from npu_plugins.diagnostics.doctor import versions
from npu_plugins.diagnostics.doctor.cann import DEFAULT_PREFIX, value_of
from npu_plugins.diagnostics.doctor.machine import Machine

MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
"""Device files that every process on an NPU opens besides the NPU's own."""
GROUP = "HwHiAiUser"
_HUAWEI, _ACCELERATOR = "0x19e5", "0x12"  # PCI vendor, and class of processing accelerators
_RANGE = re.compile(r"\[\s*([^,\]\s]+)\s*,\s*([^,\]\s]+)\s*\]")


@dataclass(frozen=True)
class Driver:
    """An installed driver, as its version.info describes it."""

    folder: str
    version: str
    firmware: str | None
    """Version of the installed firmware; None if no file tells."""
    takes_firmware: tuple[tuple[str, str], ...]
    """Lowest and highest version of each range of firmware that the driver runs with."""

    def firmware_fits(self) -> bool | None:
        """True or False as the driver's own ranges say; None where versions or ranges are not known."""
        have = versions.parse(self.firmware) if self.firmware else None
        ranges = [(versions.parse(low), versions.parse(high)) for low, high in self.takes_firmware]
        if have is None or not ranges:
            return None
        return any(low is not None and high is not None and low <= have <= high for low, high in ranges)


def prefix(machine: Machine) -> str:
    """Return the folder that driver and firmware are installed in."""
    text = machine.read("/etc/ascend_install.info") or ""
    return (value_of(text, "Driver_Install_Path_Param") or DEFAULT_PREFIX).rstrip("/")


def find(machine: Machine) -> Driver | None:
    """Return the installed driver, or None: there is none, or it is not shown to this container."""
    folder = prefix(machine)
    text = machine.read(f"{folder}/driver/version.info") or ""
    version = value_of(text, "Version")
    if version is None:
        return None
    firmware = value_of(machine.read(f"{folder}/firmware/version.info") or "", "Version")
    ranges = _RANGE.findall(value_of(text, "compatible_version_fw") or "")
    return Driver(f"{folder}/driver", version, firmware, tuple(ranges))


def device_numbers(machine: Machine) -> list[int]:
    """Return the numbers of the NPUs that this machine or container has device files of."""
    names = (path.name.removeprefix("davinci") for path in machine.glob("/dev", "davinci[0-9]*"))
    return sorted(int(name) for name in names if name.isdecimal())


def pci_cards(machine: Machine) -> list[str]:
    """Return the PCI device numbers (0xd802) of the NPUs on the bus, with or without a driver."""
    found = []
    for folder in machine.glob("/sys/bus/pci/devices", "*"):
        name = machine.name(folder)
        vendor, kind, device = (
            (machine.read(f"{name}/{part}") or "").strip() for part in ("vendor", "class", "device")
        )
        if vendor == _HUAWEI and kind.startswith(_ACCELERATOR):
            found.append(device)
    return found
