"""Codes are found where logs have them, and nowhere else; every code of CANN's headers is known."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from npu_plugins.diagnostics.codes import Explanation, explain
from npu_plugins.diagnostics.codes.explain import known_codes

# As users posted them; hosts and paths are made up.
HCCL_TIMEOUT = """
RuntimeError: createHCCLCommOrigin:torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:2314 HCCL function error: \
HcclGetRootInfo(&hcclID), error code is 11
[ERROR] 2025-03-26-17:01:03 (PID:159, Device:0, RankID:-1) ERR02200 DIST call hccl api failed.
EJ0003: [PID: 159] 2025-03-26-17:01:02.816.428 Failed to bind the IP port.
"""
SYNCHRONIZE = """
RuntimeError: ACL stream synchronize failed, error code:507018
[ERROR] RUNTIME(420723,python):2022-08-17-04:49:06.339.082 [task.cc:3276]420723 GetError:retcode:507011
NPU function error: c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 107020
[Error]: Stream Synchronize failed, ret=507899, runtime result = 207001, ACL_ERROR_RT_SOCKET_CLOSE
"""
NO_CODES = """
step 107020 of 507011, 200000 samples, 507015 tokens/s, loss 1.0
PID:507011 saved in 107002 ms; pointer 0x12c0507011; checkpoint-100000/shard_207001.safetensors
E1234 XEI0002 EI00021 REI0002 ERR0220 http://127.0.0.1:107020 hccl error code is 77
"""


def codes(text: str) -> list[str]:
    return [explanation.code for explanation in explain(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HCCL_TIMEOUT, ["HCCL 11", "ERR02200", "EJ0003"]),
        (SYNCHRONIZE, ["507018", "507011", "107020", "507899", "207001", "507901"]),
        ("EI0002", ["EI0002"]),
        ("EI0006: Getting socket times out. EI0006 again, EZ9999: Inner Error!", ["EI0006", "EZ9999"]),
        ("Communication_Error_Bind_IP_Port(EI0020): port 16666", ["EI0020"]),
        (" 507035 ", ["507035"]),
        ("HCCL_E_TIMEOUT", ["HCCL 9"]),
        ("HCCL 9", ["HCCL 9"]),
        ("call aclnnAdd failed, error code is 161002", ["161002"]),
        (NO_CODES, []),
        ("", []),
    ],
)
def test_codes_are_found_in_the_order_of_the_text_each_once(text: str, found: list[str]) -> None:
    assert codes(text) == found


def test_every_code_says_what_happened_and_what_to_do() -> None:
    for explanation in known_codes():
        assert explanation.cause.endswith("."), explanation
        assert " " in explanation.mend, explanation
        assert explanation.mend.endswith("."), explanation


def test_every_code_is_found_as_logs_write_it() -> None:
    known = known_codes()
    log = "\n".join(f"error code is {one.code}" if one.code.isdigit() else one.code for one in known)
    assert explain(log) == known


def test_the_report_of_a_code_is_one_paragraph() -> None:
    assert str(Explanation("EI0004", "Ranktable", "The rank table is faulty.", "Correct it.")) == (
        "EI0004 (Ranktable): The rank table is faulty. Correct it."
    )


def test_all_codes_of_the_headers_of_torch_npu_are_known() -> None:
    package = find_spec("torch_npu")
    if package is None or package.origin is None:
        pytest.skip("torch_npu, which has the headers, is not installed")
    include = Path(package.origin).parent / "include"
    codes_of_acl = include / "third_party/acl/inc/acl/error_codes"
    headers = [*codes_of_acl.iterdir(), include / "torch_npu/csrc/core/npu/NPUErrorCodes.h"]
    texts = [header.read_text() for header in headers]
    told = set(re.findall(r"\b[1-5]\d{5}\b", "\n".join(texts)))
    assert len(told) > 180
    assert told - {known.code for known in known_codes()} == set()
