"""A last check by doing it: another process imports torch and torch_npu and looks for the NPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from npu_plugins.diagnostics.doctor.checks import packages, toolkit
from npu_plugins.diagnostics.doctor.checks.platform import is_simulated, is_there
from npu_plugins.diagnostics.doctor.finding import Finding, error, ok, warning
from npu_plugins.diagnostics.doctor.machine import CommandError, Machine
from npu_plugins.simulator.settings import format_bytes

TIMEOUT = 180.0  # seconds; opening eight cards takes some, importing from a slow disk more
_PROBE = "npu_plugins.diagnostics.doctor.probe"
_LEAST_FREE = 0.85  # of the memory


@dataclass(frozen=True)
class Answer:
    """What the process has found."""

    error: str
    torch: str
    torch_npu: str
    count: int
    memory: list[list[int]]
    """Free bytes and all bytes of each NPU."""
    timeouts: list[str]

    @classmethod
    def from_output(cls, said: str) -> Answer:
        """Read the last line that the process printed; raises ValueError for anything else."""
        lines = said.strip().splitlines()
        try:
            return cls(**json.loads(lines[-1] if lines else ""))
        except TypeError as failure:
            raise ValueError(str(failure)) from failure


def simulator(machine: Machine) -> Iterator[Finding]:
    """The simulator is built, or can be."""
    if not is_simulated(machine) or _fails_for_known_reason(machine):
        return
    if built(machine):
        yield ok("runtime.simulator", "The simulator is built.")
    else:
        yield warning(
            "runtime.simulator",
            "The simulator is not built for this machine yet: the first job does so, which takes minutes.",
            "npu-plugins simulator build, then run the doctor again: it can then look at the simulated NPUs.",
        )


def built(machine: Machine) -> bool:
    """True when the simulator's libraries are there, so that importing torch_npu compiles nothing."""
    try:
        machine.run([machine.executable, "-m", _PROBE, "simulator"], TIMEOUT)
    except CommandError:
        return False
    return True


def import_torch_npu(machine: Machine) -> Iterator[Finding]:
    """torch_npu can be imported and sees the NPUs, and HCCL_TIMEOUT agrees with what else is set."""
    check = "runtime.torch_npu"
    if machine.package_version("torch") is None or machine.package_version("torch_npu") is None:
        return
    if not (built(machine) if is_simulated(machine) else is_there(machine)) or _fails_for_known_reason(
        machine
    ):
        return
    try:
        said = machine.run([machine.executable, "-m", _PROBE, "npus"], TIMEOUT)
    except CommandError as failure:
        yield error(
            check,
            f"Importing torch_npu ends the process: {failure}.",
            "Mend the errors above first; then `python -c 'import torch_npu'` shows the whole story.",
        )
        return
    try:
        answer = Answer.from_output(said)
    except ValueError:
        yield error(
            check,
            f"A process that imports torch_npu says nothing that can be read: {said[-200:]!r}.",
            "`python -c 'import torch_npu'` shows the whole story.",
        )
        return
    yield from _answer(check, answer, "simulated " if is_simulated(machine) else "")


def _fails_for_known_reason(machine: Machine) -> bool:
    """True when another finding says already why the import fails: it is then told once."""
    causes = (packages.torch_pair, toolkit.installation, toolkit.environment)
    return any(finding.level == "error" for check in causes for finding in check(machine))


def _answer(check: str, answer: Answer, kind: str) -> Iterator[Finding]:
    if answer.error:
        yield error(check, answer.error, "Mend the errors above first, then what this sentence says.")
        return
    count = answer.count
    if count == 0:
        yield error(
            check,
            "torch_npu is imported, and torch.npu.device_count() is 0.",
            "unset ASCEND_RT_VISIBLE_DEVICES, and see whether `npu-smi info` shows the NPUs.",
        )
    else:
        noun = "NPU" if count == 1 else "NPUs"
        yield ok(check, f"torch {answer.torch} and torch_npu {answer.torch_npu} see {count} {kind}{noun}.")
    for number, (free, total) in enumerate(answer.memory):
        if free < _LEAST_FREE * total:
            yield warning(
                "runtime.memory",
                f"{kind}NPU {number}: {format_bytes(free)} of {format_bytes(total)} are free.".capitalize(),
                "End the jobs that use it, or choose other NPUs with ASCEND_RT_VISIBLE_DEVICES.",
            )
    for sentence in answer.timeouts:
        seen, _, mend = sentence.rstrip(".").partition("; ")
        yield warning(
            "runtime.timeouts", f"{seen}.", f"{mend or 'Raise it above HCCL_TIMEOUT, or unset it'}."
        )
