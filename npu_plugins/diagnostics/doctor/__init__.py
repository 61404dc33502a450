"""`npu-plugins doctor`: is this machine, and this shell, right for training on NPUs?

>>> from npu_plugins.diagnostics.doctor import examine, this_machine, worst
>>> findings = examine(this_machine())
>>> worst(findings)
'ok'
"""

from npu_plugins.diagnostics.doctor.examine import CHECKS, examine
from npu_plugins.diagnostics.doctor.finding import Finding, worst
from npu_plugins.diagnostics.doctor.machine import Machine, this_machine

__all__ = ["CHECKS", "Finding", "Machine", "examine", "this_machine", "worst"]
