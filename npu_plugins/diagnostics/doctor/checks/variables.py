"""Environment variables: names that nothing reads, and values that HCCL refuses."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from npu_plugins.diagnostics.doctor.checks.platform import is_simulated
from npu_plugins.diagnostics.doctor.finding import Finding, error, ok, warning
from npu_plugins.diagnostics.doctor.machine import Machine
from npu_plugins.diagnostics.doctor.tables import variables


def names(machine: Machine) -> Iterator[Finding]:
    """No variable of NCCL or CUDA is set in place of HCCL's, and no name of HCCL is misspelt."""
    check = "variables.names"
    table, fine = variables(), True
    for name, advice in table["mistaken"].items():
        value, use = machine.setting(name), advice.get("use")
        if value is None or (use is not None and machine.setting(use)):
            continue
        fine = False
        yield warning(
            check,
            f"{name}={value} has no effect on NPUs: HCCL and torch_npu do not read it.",
            _instead(use, value, advice.get("note")),
        )
    for name in sorted(machine.environ):
        if not name.startswith("HCCL_") or name in table["hccl"]:
            continue
        fine = False
        close = difflib.get_close_matches(name, table["hccl"], n=1, cutoff=0.8)
        yield warning(
            check,
            f"HCCL knows no variable {name}.",
            f"export {close[0]} instead, if that was meant." if close else f"unset {name}.",
        )
    if fine:
        yield ok(check, "No variable of NCCL, CUDA or HCCL is set that nothing reads.")


def values(machine: Machine) -> Iterator[Finding]:
    """The values of HCCL's variables are such as HCCL takes; it ends a job with EI0001 over others.

    The simulated HCCL takes some of them, so that tests end soon. HCCL_TIMEOUT, which is ours, is looked at
    by the process that imports torch_npu.
    """
    say = warning if is_simulated(machine) else error
    for name, limits in variables()["hccl"].items():
        value = machine.setting(name)
        if value is None:
            continue
        wanted = _wanted(value, limits)
        if wanted:
            yield say(
                "variables.values",
                f"{name}={value} is not {wanted}: HCCL refuses it (EI0001).",
                f"Give {name} a value that is, or unset it.",
            )
    pcie, roce = machine.setting("HCCL_INTRA_PCIE_ENABLE"), machine.setting("HCCL_INTRA_ROCE_ENABLE")
    if pcie == roce == "1":
        yield say(
            "variables.values",
            "HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE are both 1: HCCL refuses that (EI0001).",
            "Set one of them to 0, or unset both.",
        )


def threads(machine: Machine) -> Iterator[Finding]:
    """OMP_NUM_THREADS leaves each rank a share of the processors."""
    check, value = "variables.omp_num_threads", machine.setting("OMP_NUM_THREADS")
    if value is None:
        yield ok(
            check,
            f"OMP_NUM_THREADS is not set: a process alone uses {machine.cpus} threads, a rank of torchrun 1.",
        )
        return
    # OpenMP takes a list for nested regions; the first number counts.
    first = value.split(",")[0].strip()
    if not (first.isascii() and first.isdecimal() and int(first) > 0):
        yield warning(
            check,
            f"OMP_NUM_THREADS={value} is no number above 0, and is ignored.",
            "export OMP_NUM_THREADS=<processors / ranks of this machine>.",
        )
    elif int(first) > machine.cpus:
        yield warning(
            check,
            f"OMP_NUM_THREADS={value}, but this process has {machine.cpus} processors.",
            f"export OMP_NUM_THREADS={machine.cpus} or less: <processors / ranks of this machine>.",
        )
    else:
        yield ok(check, f"OMP_NUM_THREADS={value} of {machine.cpus} processors.")


def autoload(machine: Machine) -> Iterator[Finding]:
    """torch may import torch_npu by itself."""
    if machine.setting("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield warning(
            "variables.autoload",
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0: `import torch` does not bring the NPU, only `import"
            " torch_npu` does.",
            "unset TORCH_DEVICE_BACKEND_AUTOLOAD, or import torch_npu in the program.",
        )


def _instead(use: str | None, value: str, note: str | None) -> str:
    if use is None:
        return f"unset it; {note}."
    return f"export {use}=" + ("..." if note else value) + (f" ({note})." if note else ".")


def _wanted(value: str, limits: Mapping[str, Any]) -> str:
    """Say what a value should be, if it is not; else return an empty string."""
    if "one_of" in limits:
        choices = limits["one_of"]
        return "" if value.lower() in (c.lower() for c in choices) else f"one of {', '.join(choices)}"
    if "least" not in limits:
        return ""
    least, most, step = limits["least"], limits.get("most"), limits.get("multiple_of", 1)
    number = int(value) if value.isascii() and value.isdecimal() else None
    if number is not None and number >= least and (most is None or number <= most) and number % step == 0:
        return ""
    described = f"a whole number from {least}" + (f" to {most}" if most is not None else " up")
    return described + (f" that {step} divides" if step > 1 else "")
