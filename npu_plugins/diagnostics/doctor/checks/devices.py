"""The NPUs that this process may use: files, health, memory, and the variables that choose them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npu_plugins.accelerator.environment import MISTAKEN_DEVICE_VARIABLES, VISIBLE_DEVICES, parse_devices
from npu_plugins.diagnostics.doctor import driver, npu_smi
from npu_plugins.diagnostics.doctor.checks.platform import is_simulated
from npu_plugins.diagnostics.doctor.finding import Finding, error, ok, warning
from npu_plugins.diagnostics.doctor.machine import CommandError, Machine
from npu_plugins.errors import SimulatorError
from npu_plugins.simulator.settings import settings_from

_MOST_USED = 0.15  # of an idle chip's memory: 3.4 GB of 64 and 2.9 GB of 32 are seen without any process


def files(machine: Machine) -> Iterator[Finding]:
    """The device files are all there, and this user may open them."""
    check = "devices.files"
    numbers = driver.device_numbers(machine)
    if is_simulated(machine) or not numbers:
        return
    missing = [name for name in driver.MANAGERS if not machine.path(name).exists()]
    if missing:
        yield error(
            check,
            f"{', '.join(missing)} missing beside /dev/davinci{numbers[0]}.",
            "Load the driver anew; in a container, start it with --device of each.",
        )
    own = [f"/dev/davinci{number}" for number in numbers]
    names = [name for name in (*own, *driver.MANAGERS) if machine.path(name).exists()]
    closed = [name for name in names if not machine.may_open(machine.path(name))]
    if closed:
        yield error(
            check,
            f"User {machine.user} may not read and write {', '.join(closed)}.",
            f"Add the user to the group of the driver (`sudo usermod -aG {driver.GROUP} {machine.user}`)"
            " and log in anew.",
        )
    if not missing and not closed:
        yield ok(check, f"User {machine.user} may open the device files of {len(numbers)} NPUs.")


def health(machine: Machine) -> Iterator[Finding]:
    """npu-smi answers and calls every NPU healthy."""
    check = "devices.health"
    if is_simulated(machine) or not driver.device_numbers(machine):
        return
    try:
        seen = npu_smi.overview(machine)
    except CommandError as failure:
        yield warning(
            check,
            f"The health of the NPUs is not known: {failure}.",
            "Install the driver's tools, or in a container mount /usr/local/bin/npu-smi of the"
            " host; where it runs"
            " but fails, `dmesg` of the host says why.",
        )
        return
    if not seen.chips:
        yield error(
            check,
            "npu-smi shows no NPU, though there are device files.",
            "Look into `dmesg` of the host, load the driver anew, or restart the machine.",
        )
        return
    ill = [chip for chip in seen.chips if chip.health != "OK"]
    for chip in ill:
        say = warning if chip.health == "Warning" else error
        yield say(
            check,
            f"{chip.label} ({chip.name}) is {chip.health}.",
            f"`npu-smi info -t health -i {chip.npu}` names the fault; leave it out with {VISIBLE_DEVICES}"
            " until it is mended.",
        )
    if not ill:
        kinds = ", ".join(sorted({chip.name for chip in seen.chips}))
        yield ok(
            check,
            f"{len(seen.chips)} chips ({kinds}) are healthy, says npu-smi {seen.version or ''}".rstrip()
            + ".",
        )


def memory(machine: Machine) -> Iterator[Finding]:
    """No other process holds memory of the NPUs."""
    check = "devices.memory"
    if is_simulated(machine) or not driver.device_numbers(machine):
        return
    try:
        seen = npu_smi.overview(machine)
    except CommandError:
        return  # `health` has said so
    busy = False
    for chip in seen.chips:
        if chip.total == 0:
            continue
        users = [p for p in seen.processes if (p.npu, p.chip) == (chip.npu, chip.chip)]
        if not users and chip.used <= _MOST_USED * chip.total:
            continue
        busy = True
        named = ", ".join(f"{p.name} (pid {p.pid}, {p.memory} MiB)" for p in users)
        yield warning(
            check,
            f"{chip.label}: {chip.used} of {chip.total} MiB are used"
            + (f", by {named}." if named else ", by no process that can be seen from here."),
            f"End what should not run there, or choose other NPUs with {VISIBLE_DEVICES}.",
        )
    with_memory = [chip for chip in seen.chips if chip.total]
    if with_memory and not busy:
        free = min(chip.total - chip.used for chip in with_memory)
        yield ok(check, f"No process uses the NPUs; at least {free} MiB are free on each.")


def visible(machine: Machine) -> Iterator[Finding]:
    """ASCEND_RT_VISIBLE_DEVICES names NPUs that exist, each once."""
    check = "devices.visible"
    if VISIBLE_DEVICES not in machine.environ:
        return
    value, present = machine.environ[VISIBLE_DEVICES], _present(machine)
    if not value.strip():
        yield error(
            check,
            f"{VISIBLE_DEVICES} is set but empty, which hides every NPU.",
            f"unset {VISIBLE_DEVICES}, or name NPUs: {VISIBLE_DEVICES}=0,1.",
        )
        return
    fields = [field.strip() for field in value.split(",")]
    if not all(field.isascii() and field.isdecimal() for field in fields):
        yield error(
            check,
            f"{VISIBLE_DEVICES}={value} is no list of numbers.",
            f"Write numbers with commas between them, ranges at full length: {VISIBLE_DEVICES}=0,1,2,3.",
        )
        return
    numbers = [int(field) for field in fields]
    # In a container with davinci3 and davinci5, both 3,5 and the new numbers 0,1 are in use.
    named = present | set(range(len(present))) if present is not None else set(numbers)
    unknown = [str(number) for number in numbers if number not in named]
    if unknown:
        yield error(
            check,
            f"{VISIBLE_DEVICES}={value} names {', '.join(unknown)}, and this machine has"
            f" {sorted(present or ())}.",
            "Name NPUs that are there; in a container they may be numbered anew, from 0.",
        )
    elif len(set(numbers)) < len(numbers):
        yield error(check, f"{VISIBLE_DEVICES}={value} names an NPU twice.", "Name each NPU once.")
    else:
        yield ok(check, f"{VISIBLE_DEVICES}={value} shows {len(numbers)} NPUs to this process.")


def mistaken(machine: Machine) -> Iterator[Finding]:
    """No variable is set that was meant to choose NPUs but does not."""
    if machine.setting(VISIBLE_DEVICES):
        return
    present = _present(machine)
    for name, reader in MISTAKEN_DEVICE_VARIABLES.items():
        value = machine.setting(name)
        if value is None:
            continue
        try:
            meant = len(set(parse_devices(value)))
        except ValueError:
            continue
        if present is not None and meant == len(present):
            continue  # all of them: it makes no difference
        number = "all" if present is None else f"all {len(present)}"
        yield warning(
            "devices.wrong_variable",
            f"{name}={value} does not choose NPUs ({reader}): {number} are in use.",
            f"export {VISIBLE_DEVICES}={','.join(map(str, parse_devices(value)))}.",
        )


def fallback(machine: Machine) -> Iterator[Finding]:
    """No variable sends the training to the CPU."""
    chosen = machine.setting("DS_ACCELERATOR")
    if chosen is not None and chosen != "npu":
        yield warning(
            "devices.ds_accelerator",
            f"DS_ACCELERATOR={chosen}: DeepSpeed will not use the NPU.",
            "unset DS_ACCELERATOR, unless that is meant.",
        )
    if (machine.setting("ACCELERATE_USE_CPU") or "").lower() in ("1", "true", "yes", "on"):
        yield warning(
            "devices.accelerate_use_cpu",
            "ACCELERATE_USE_CPU is set: accelerate uses the CPU, and silently leaves DeepSpeed out.",
            "unset ACCELERATE_USE_CPU.",
        )
    home = machine.setting("HF_HOME") or f"{machine.setting('HOME') or '/root'}/.cache/huggingface"
    place = f"{home}/accelerate/default_config.yaml"
    if re.search(r"^use_cpu:\s*(true|yes|on)\s*$", machine.read(place) or "", re.MULTILINE | re.IGNORECASE):
        yield warning(
            "devices.accelerate_config",
            f"{place} says use_cpu: true, and `accelerate launch` follows it.",
            "Run `accelerate config` again, or launch with --config_file.",
        )


def _present(machine: Machine) -> set[int] | None:
    """Return the numbers of the NPUs here; None where they are not known."""
    if is_simulated(machine):
        rest = {name: value for name, value in machine.environ.items() if name != VISIBLE_DEVICES}
        try:
            return set(range(settings_from(rest).npus))
        except SimulatorError:
            return None  # `platform.npus` has said so
    return set(driver.device_numbers(machine)) or None
