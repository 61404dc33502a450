"""Whatever a machine holds: the doctor ends with findings, never with a traceback."""

from __future__ import annotations

import dataclasses
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_plugins.diagnostics.doctor import CHECKS, Finding, Machine, examine, worst
from npu_plugins.diagnostics.doctor.report import as_text, exit_status
from npu_plugins.diagnostics.errors import DiagnosticsError
from tests.diagnostics.doctor import machines

ASKED = [field.name for field in dataclasses.fields(Machine) if str(field.type).startswith("Callable")]
# As cut-off, binary or foreign files would be, with what parsers look for in between.
TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20),
        st.sampled_from(
            ["=", "[", "]", ",", "|", "/", ":", "\n", "\0", " ", "..", "-", "{", "}", '"host_ip"', "0x19e5"]
        ),
        st.integers(-5, 10**12).map(str),
    ),
    max_size=30,
).map("".join)
FILES = (
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
    "/tmp/table",
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/Ascend/firmware/version.info",
    f"{machines.HOME}/version.cfg",
    f"{machines.HOME}/aarch64-linux/ascend_toolkit_install.info",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/ip_local_reserved_ports",
    "/sys/bus/pci/devices/0000:40:00.0/device",
)
VARIABLES = (
    *machines.sourced(),
    *(
        "NPU_SIM",
        "NPU_SIM_HBM",
        "ASCEND_RT_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "ATB_HOME_PATH",
        "PATH",
        "HOME",
    ),
    *(
        "HCCL_IF_IP",
        "HCCL_SOCKET_IFNAME",
        "HCCL_IF_BASE_PORT",
        "HCCL_CONNECT_TIMEOUT",
        "OMP_NUM_THREADS",
        "CXX",
    ),
    *(
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "TORCH_EXTENSIONS_DIR",
        "GLOO_SOCKET_IFNAME",
    ),
    *(
        "RANK_TABLE_FILE",
        "HCCL_WHITELIST_FILE",
        "DS_ACCELERATOR",
        "NCCL_DEBUG",
        "HCCL_WHATEVER",
        "HCCL_TIMEOUT",
    ),
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """One folder for all examples, which write what they change anew."""
    return machines.healthy(tmp_path_factory.mktemp("machine"))


def raising(error: type[Exception]) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error("no such luck")

    return fail


@settings(max_examples=25)
@given(
    broken=st.sets(st.sampled_from(ASKED), min_size=1),
    error=st.sampled_from(
        [OSError, ValueError, RuntimeError, KeyError, AttributeError, UnicodeError, ImportError]
    ),
)
def test_whatever_cannot_be_asked_is_a_finding_that_names_the_check(
    healthy: Machine, broken: set[str], error: type[Exception]
) -> None:
    found = examine(dataclasses.replace(healthy, **dict.fromkeys(broken, raising(error))))
    failed = [finding for finding in found if finding.check.startswith("doctor.")]
    for finding in failed:
        assert finding.check.removeprefix("doctor.") in CHECKS
        assert error.__name__ in finding.seen
        assert finding.level == "warning"
    if "limit" in broken:
        assert "doctor.host.limits" in {finding.check for finding in failed}
    assert as_text(found)


@settings(max_examples=40)
@given(
    environ=st.dictionaries(
        st.sampled_from(VARIABLES), TEXTS.map(lambda text: text.replace("\0", "")), max_size=6
    ),
    files=st.dictionaries(st.sampled_from(FILES), TEXTS, max_size=6),
    said=TEXTS,
    packages=st.dictionaries(
        st.sampled_from(["torch", "torch_npu", "numpy", "deepspeed"]), TEXTS, max_size=3
    ),
)
def test_no_text_stops_a_check(
    healthy: Machine, environ: dict[str, str], files: dict[str, str], said: str, packages: dict[str, str]
) -> None:
    before = {name: (healthy.root / name.lstrip("/")) for name in files}
    kept = {name: path.read_bytes() if path.exists() else None for name, path in before.items()}
    named = {
        "RANK_TABLE_FILE": "/tmp/table",
        "HCCL_WHITELIST_FILE": "/tmp/table",
        "HCCL_WHITELIST_DISABLE": "0",
    }
    try:
        for name, text in files.items():
            machines.write(healthy.root, name, text.encode("utf-8", "replace").decode())
        found = examine(
            dataclasses.replace(
                healthy,
                environ={**healthy.environ, **named, **environ},
                run=lambda command, timeout: said,
                package_version=lambda name: packages.get(name, machines.GOOD.get(name)),
            )
        )
    finally:
        for name, content in kept.items():
            before[name].unlink() if content is None else before[name].write_bytes(content)
    assert [finding for finding in found if finding.check.startswith("doctor.")] == []
    assert all(finding.seen.endswith((".", "'")) or finding.level == "error" for finding in found)


def test_an_empty_machine(tmp_path: Path) -> None:
    bare = machines.machine(tmp_path, environ={"PATH": ""}, packages={}, system="Plan9", architecture="mips")
    found = examine(bare)
    assert [finding.check for finding in found if finding.level == "error"][:3] == [
        "platform.system",
        "platform.npus",
        "packages.torch",
    ]
    assert not any(finding.check.startswith("doctor.") for finding in found)


def test_without_a_package_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("packaging", "packaging.version", "packaging.requirements"):
        monkeypatch.setitem(sys.modules, name, None)
    found = examine(machines.machine(tmp_path))
    assert [finding.check for finding in found if finding.level == "error"] == ["platform.npus"]
    failed = [finding for finding in found if finding.check.startswith("doctor.")]
    assert {finding.check.partition(".")[2].partition(".")[0] for finding in failed} == {"packages"}
    assert {finding.mend for finding in failed} == {"pip install packaging: npu-plugins needs it."}


def test_a_check_that_is_not_there_names_itself(tmp_path: Path) -> None:
    (finding,) = examine(machines.machine(tmp_path), ["host.nothing"])
    assert finding.check == "doctor.host.nothing" and "AttributeError" in finding.seen


def test_every_name_of_a_check_is_used_once_on_a_healthy_machine(healthy: Machine) -> None:
    names = [finding.check for finding in examine(healthy)]
    assert len(set(names)) == len(names)
    assert all(set(name) <= set(string.ascii_lowercase + "._") for name in names)


def test_a_fault_without_a_mend_is_refused() -> None:
    with pytest.raises(DiagnosticsError, match="no mend"):
        Finding("host.x", "error", "It is broken.")
    with pytest.raises(DiagnosticsError, match="'fatal'"):
        Finding("host.x", "fatal", "It is broken.", "Mend it.")


@pytest.mark.parametrize(
    ("levels", "expected", "status", "strict"),
    [
        ([], "ok", 0, 0),
        (["ok"], "ok", 0, 0),
        (["warning", "ok"], "warning", 0, 1),
        (["error", "warning"], "error", 1, 1),
    ],
)
def test_the_worst_finding_makes_the_status(
    levels: list[str], expected: str, status: int, strict: int
) -> None:
    findings = [Finding("a.b", level, "Seen.", "Mend.") for level in levels]
    assert worst(findings) == expected
    assert exit_status(findings) == status
    assert exit_status(findings, strict=True) == strict
