"""Judge a test that did not pass: does its own error text prove that it needs what is not simulated?"""

from __future__ import annotations

import re

from suite.recorder import OUTPUT

# Pattern in the error text -> what the test needs. The first hit counts.
NEEDS: tuple[tuple[str, str], ...] = (
    (r"(storage format \d+), here of \w+, is not simulated", "{} of the chip"),
    (r"operator (\w+) \(aclopCompileAndExecute\)\s+is not simulated", "operator {} of CANN's compiler"),
    (r"([\w:.]+(?:\(\w+\))?) is not simulated", "{}"),
    (r"([\w:.]+)(?: \S+){1,6} is not simulated", "{}"),
    (r"Failed to find function (acl\w+|Hccl\w+|rt\w+|tsd\w+)", "{}"),
    (r"(aclnn\w+) not found", "{}"),
    (r"(aclnn\w+) or aclnn\w+GetWorkspaceSize not in", "{}"),
    (r"InductorError: AssertionError: Device npu not (supported)", "TorchInductor for the NPU"),
    (r"(libatb\.so): cannot open shared object file", "{} (CANN's transformer library)"),
    (r"module 'numpy' has no attribute '(\w+)'", "numpy 1 (numpy.{})"),
    (r"needs (\d+) GiB of host memory", "{} GiB of host memory"),
    (r"No module named '(torch\.[\w.]+)'", "another PyTorch release ({})"),
    (r"module 'torch\._C' has no attribute '(\w+)'", "another PyTorch release (torch._C.{})"),
    (r"cannot import name '(\w+)' from '(torch[\w.]*)'", "another PyTorch release ({1}.{0})"),
    (r"(DeviceMesh).__init__\(\) got an unexpected keyword argument", "another PyTorch release ({})"),
    (r"'(DeviceMesh)' object has no attribute '(\w+)'", "another PyTorch release ({0}.{1})"),
    (
        r"(foreach_all_gather|foreach_reduce)\(\) (?:takes|missing|got an unexpected)",
        "another PyTorch release ({})",
    ),
    (r"No module named '(torchvision|onnx\w*|triton\w*|torchair|etcd|dvm)\b", "package {}"),
)
COMPILED = tuple((re.compile(pattern), need) for pattern, need in NEEDS)


def need_of(text: str) -> str | None:
    """What the failed test needs beyond the simulation, or None where the text proves nothing of the kind."""
    for pattern, need in COMPILED:
        if found := pattern.search(text):
            return need.format(*found.groups())
    return None


def cause_of(text: str) -> str:
    """The line of an error text that says most: the last one that names an exception, else the first."""
    lines = [line.strip() for line in text.split(OUTPUT)[0].splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(E\s+)?[\w.]*(Error|Exception|Exit|Interrupt)\b", line)]
    line = errors[-1] if errors else lines[0] if lines else "no text"
    line = re.sub(r"/tmp/[^\s']+", "a temporary file", line)
    return line.removeprefix("E ").split("\\n")[0].strip()[:140]
