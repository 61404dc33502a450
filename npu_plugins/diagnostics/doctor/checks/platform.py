"""What this machine trains on: real NPUs, simulated ones, or none."""

from __future__ import annotations

from collections.abc import Iterator

from npu_plugins.diagnostics.doctor import cann, driver
from npu_plugins.diagnostics.doctor.finding import Finding, error, ok, warning
from npu_plugins.diagnostics.doctor.machine import Machine
from npu_plugins.errors import SimulatorError
from npu_plugins.simulator.settings import format_bytes, settings_from, simulator_requested

_WITHOUT_A_CARD = (
    "set NPU_SIM=<number> to simulate NPUs, or DS_ACCELERATOR=cpu to train on the CPU on purpose"
)


def is_simulated(machine: Machine) -> bool:
    """True when this environment asks for simulated NPUs."""
    return simulator_requested(machine.environ)


def is_there(machine: Machine) -> bool:
    """True when real NPUs or a CANN can be seen: then CANN, driver and network are looked at."""
    return not is_simulated(machine) and bool(
        driver.device_numbers(machine)
        or driver.pci_cards(machine)
        or cann.home_in_environment(machine)
        or cann.find(machine)
    )


def operating_system(machine: Machine) -> Iterator[Finding]:
    """torch_npu is built for Linux, on x86_64 and aarch64."""
    seen = f"This is {machine.system} on {machine.architecture}"
    if machine.system == "Linux" and machine.architecture in ("x86_64", "aarch64"):
        yield ok("platform.system", f"{seen}.")
    else:
        yield error(
            "platform.system",
            f"{seen}, for which there is no torch_npu.",
            "Use Linux on x86_64 or aarch64 (a container will do), or DS_ACCELERATOR=cpu to train"
            " on the CPU.",
        )


def npus(machine: Machine) -> Iterator[Finding]:
    """Whether the NPUs are real or simulated, and how many there are."""
    check = "platform.npus"
    if is_simulated(machine):
        yield from _simulated(machine, check)
        return
    numbers = driver.device_numbers(machine)
    if numbers:
        yield ok(check, f"Real NPUs: {len(numbers)}, with the device files of davinci {_ranges(numbers)}.")
    elif driver.pci_cards(machine):
        cards = driver.pci_cards(machine)
        yield error(
            check,
            f"The PCI bus has {len(cards)} NPU(s) ({', '.join(sorted(set(cards)))}), but there is"
            " no /dev/davinci*.",
            "Install the driver or load it (`systemctl status` and `dmesg` say why it is not); in a"
            " container,"
            " start it with --device /dev/davinci0 and so on, and with --device of " + _managers() + ".",
        )
    elif cann.find(machine):
        yield error(
            check,
            "CANN is installed, but there is no NPU: no /dev/davinci* and no card on the PCI bus.",
            "In a container, start it with --device /dev/davinci0 and so on, and with --device of "
            f"{_managers()}; otherwise {_WITHOUT_A_CARD}.",
        )
    else:
        yield error(
            check,
            "There is no NPU (no /dev/davinci*, no card on the PCI bus), no CANN, and NPU_SIM is not set.",
            "On a machine with NPUs, install driver and CANN and source set_env.sh; otherwise"
            f" {_WITHOUT_A_CARD}.",
        )


def _simulated(machine: Machine, check: str) -> Iterator[Finding]:
    try:
        settings = settings_from(machine.environ)
    except SimulatorError as failure:
        yield error(
            check, str(failure), "Set the variable as said, or unset NPU_SIM to use a real NPU or none."
        )
        return
    hidden = settings.npus - settings.visible_npus
    aside = f", of which ASCEND_RT_VISIBLE_DEVICES hides {hidden}" if hidden else ""
    yield ok(
        check,
        f"Simulated NPUs: NPU_SIM={settings.npus} of {format_bytes(settings.hbm_bytes)}"
        f" each{aside}; CANN, driver"
        " and network of a card are not looked at.",
    )
    home = cann.home_in_environment(machine)
    if home:
        yield warning(
            "platform.simulated_beside_cann",
            f"NPU_SIM is set in a shell with CANN's environment ({home}): libraries that torch_npu"
            " opens later on"
            " could come from the real CANN.",
            "Simulate in a shell in which set_env.sh has not been sourced.",
        )


def _managers() -> str:
    return ", ".join(driver.MANAGERS)


def _ranges(numbers: list[int]) -> str:
    """Write 0, 1, 2, 5 as 0-2, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
