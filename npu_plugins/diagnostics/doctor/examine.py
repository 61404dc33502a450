"""Runs the checks, and turns one that fails into a finding that names it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from npu_plugins.diagnostics.doctor.finding import Finding, warning
from npu_plugins.diagnostics.doctor.machine import Machine

CHECKS = (
    "platform.operating_system",
    "platform.npus",
    "packages.python",
    "packages.torch_pair",
    "packages.frameworks",
    "packages.requirements",
    "packages.for_cann",
    "toolkit.installation",
    "toolkit.operators",
    "toolkit.environment",
    "toolkit.driver_libraries",
    "toolkit.acceleration_library",
    "pairs.torch_npu_and_cann",
    "pairs.cann_and_driver",
    "pairs.driver_and_firmware",
    "devices.files",
    "devices.health",
    "devices.memory",
    "devices.visible",
    "devices.mistaken",
    "devices.fallback",
    "variables.names",
    "variables.values",
    "variables.threads",
    "variables.autoload",
    "network.interface",
    "network.gloo",
    "network.names",
    "network.ports",
    "network.whitelist",
    "network.npu_addresses",
    "rank_table.rank_table",
    "host.shared_memory",
    "host.limits",
    "host.compilers",
    "host.compiled",
    "runtime.simulator",
    "runtime.import_torch_npu",
)
"""All checks, as module.function of `doctor.checks`, in the order of a report: first what others build on."""


def examine(machine: Machine, checks: Sequence[str] = CHECKS) -> list[Finding]:
    """Run checks on a machine and return what they found, in order.

    A check that fails (a package that it needs is broken, a file is not what it should be, a system without
    some call) is a finding itself: the others are made all the same. Modules are imported only here, one
    by one, for that reason.

    Args:
        machine: what is looked at.
        checks: names out of `CHECKS`.
    """
    findings: list[Finding] = []
    for name in checks:
        module, _, function = name.partition(".")
        try:
            check = getattr(
                importlib.import_module(f"npu_plugins.diagnostics.doctor.checks.{module}"), function
            )
            findings.extend(check(machine))
        except Exception as failure:  # whatever a machine holds, the doctor must not end in a traceback
            findings.append(_failed(name, failure))
    return findings


def _failed(name: str, failure: Exception) -> Finding:
    told = " ".join(f"{type(failure).__name__}: {failure}".split())[:300]
    mend = "Look at what it checks yourself, and report this sentence to the authors of npu-plugins."
    if isinstance(failure, ModuleNotFoundError) and failure.name:
        mend = f"pip install {failure.name.partition('.')[0]}: npu-plugins needs it."
    return warning(f"doctor.{name}", f"The check {name} could not be made ({told}).", mend)
