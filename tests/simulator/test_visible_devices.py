"""ASCEND_RT_VISIBLE_DEVICES counts until a program first uses an NPU, as on a card."""

from __future__ import annotations

import pytest

from tests.packaging.interpreter import run_python

pytestmark = pytest.mark.npu

PROGRAM = """
import os, torch, torch_npu
counts = [torch.npu.device_count()]
for visible in ("3", "1,2", "0,9,1", ""):
    os.environ["ASCEND_RT_VISIBLE_DEVICES"] = visible
    counts.append(torch.npu.device_count())
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1,2"
torch.ones(1, device="npu:1")
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0"
torch.ones(1, device="npu:1")
print(counts, torch_npu._C._npu_getDeviceCount())
"""


def test_the_variable_counts_until_an_npu_is_used() -> None:
    ran = run_python("-c", PROGRAM, NPU_SIM="4")
    assert ran.stdout.splitlines()[-1] == "[4, 1, 2, 1, 0] 2", ran.stderr
