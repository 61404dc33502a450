"""Machines that do not exist: folders that look like them, and what their programs say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_plugins.diagnostics.doctor import Finding, Machine, examine
from npu_plugins.diagnostics.doctor.cann import LIBRARIES
from npu_plugins.diagnostics.doctor.driver import MANAGERS
from npu_plugins.diagnostics.doctor.machine import CommandError, Interface

HOME = "/usr/local/Ascend/cann-8.5.0"
GOOD = {
    "torch": "2.9.0+cpu",
    "torch_npu": "2.9.0",
    "deepspeed": "0.19.8",
    "transformers": "5.24.0",
    "accelerate": "1.15.0",
    "peft": "0.21.2",
    "datasets": "5.2.0",
    "safetensors": "0.8.0",
    "numpy": "1.26.4",
    "ninja": "1.13.2",
    **dict.fromkeys(("decorator", "sympy", "cffi", "protobuf", "attrs", "cython", "pyyaml"), "6.0"),
    **dict.fromkeys(("pathlib2", "scipy", "requests", "psutil", "absl-py"), "3.0"),
}
ASKED = ("torch>=2.1", "deepspeed>=0.16", "transformers>=5.20", "accelerate>=1.3", "peft>=0.18", "numpy")
INTERFACES = (Interface("eth0", True, ("192.168.1.7",)), Interface("lo", True, ("127.0.0.1", "::1")))
LIMITS = {"RLIMIT_NOFILE": 65535, "RLIMIT_MEMLOCK": None, "RLIMIT_NPROC": None}
GIB = 1 << 30


def write(root: Path, absolute: str, text: str = "") -> Path:
    """Write a file of the machine."""
    path = root / absolute.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def npu_smi(chips: int = 8, **ill: str) -> str:
    """What npu-smi says of an A2 machine; `npu3="Alarm"` makes that one ill."""
    rule = (
        "+===========================+===============+====================================================+"
    )
    lines = [
        "| npu-smi 25.5.0                   Version: 25.5.0                                               |",
        "+---------------------------+---------------+----------------------------------------------------+",
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        rule,
    ]
    for number in range(chips):
        health = ill.get(f"npu{number}", "OK")
        lines += [
            f"| {number}     910B3               | {health:<13} |"
            " 92.9        36                0    / 0             |",
            f"| 0                         | 0000:4{number}:00.0  |"
            " 0           0    / 0          3397 / 65536         |",
            rule,
        ]
    return "\n".join(lines)


def machine(
    root: Path,
    *,
    environ: Mapping[str, str] | None = None,
    packages: Mapping[str, str] | None = None,
    commands: Mapping[str, str] | None = None,
    **fields: Any,
) -> Machine:
    """A machine below `root`; `commands` maps what is run, without its folder, to its output."""
    said = {"g++ --version": "g++ (Debian 12.2.0) 12.2.0\n", **(commands or {})}
    known = GOOD if packages is None else packages
    write(root, "/usr/bin/g++").chmod(0o755)

    def run(command: Sequence[str], timeout: float) -> str:
        line = " ".join([command[0].rpartition("/")[2], *command[1:]])
        if line not in said:
            raise CommandError(f"`{line}` cannot be started")
        return said[line]

    def resolve(name: str) -> str:
        if name in ("node1", "localhost"):
            return {"node1": "192.168.1.7", "localhost": "127.0.0.1"}[name]
        raise OSError(-2, "Name or service not known")

    described: dict[str, Any] = {
        "root": root,
        "environ": {"PATH": "/usr/bin:/usr/local/bin", "HOME": "/root", **(environ or {})},
        "python": (3, 11, 9),
        "executable": "/usr/bin/python3",
        "system": "Linux",
        "architecture": "aarch64",
        "hostname": "node1",
        "user": "ann",
        "cpus": 192,
        "package_version": known.get,
        "requirements": lambda name: ASKED if name == "npu-plugins" else (),
        "run": run,
        "interfaces": lambda: INTERFACES,
        "resolve": resolve,
        "limit": LIMITS.__getitem__,
        "may_open": lambda path: True,
        "space": lambda path: (64 * GIB, 60 * GIB),
        "now": lambda: 1e9,
    }
    return Machine(**{**described, **fields})


def add_cann(
    root: Path,
    home: str = HOME,
    version: str = "8.5.0",
    kernels: Sequence[str] = ("ascend910b",),
    without: Sequence[str] = (),
) -> None:
    """Install CANN, `without` some of its libraries."""
    write(root, f"{home}/aarch64-linux/ascend_toolkit_install.info", f"package_name=x\nversion={version}\n")
    write(root, f"{home}/set_env.sh")
    for library in LIBRARIES:
        if library not in without:
            write(root, f"{home}/lib64/{library}")
    for part in ("runtime", "compiler", "opp/built-in/op_impl"):
        (root / home.lstrip("/") / part).mkdir(parents=True, exist_ok=True)
    for chip in kernels:
        write(root, f"{home}/opp/built-in/op_impl/ai_core/tbe/kernel/{chip}/ops_math/add.o")


def sourced(home: str = HOME) -> dict[str, str]:
    """The environment after `source set_env.sh`."""
    return {
        "ASCEND_HOME_PATH": home,
        "ASCEND_TOOLKIT_HOME": home,
        "ASCEND_OPP_PATH": f"{home}/opp",
        "LD_LIBRARY_PATH": f"{home}/lib64:/usr/local/Ascend/driver/lib64/driver",
        "PYTHONPATH": f"{home}/python/site-packages",
    }


def add_driver(
    root: Path, version: str = "25.5.0", firmware: str = "7.8.0.2.212", takes: str = "[7.0.0,8.9.9]"
) -> None:
    """Install driver and firmware."""
    place = "/usr/local/Ascend"
    write(root, "/etc/ascend_install.info", f"UserName=HwHiAiUser\nDriver_Install_Path_Param={place}\n")
    write(
        root,
        f"{place}/driver/version.info",
        f"Version={version}\nascendhal_version=7.35.23\ncompatible_version_fw={takes}\npackage_version={version}\n",
    )
    write(root, f"{place}/firmware/version.info", f"Version={firmware}\nfirmware_version=1.0\n")
    write(root, f"{place}/driver/lib64/driver/libascend_hal.so")


def add_npus(root: Path, count: int = 8) -> None:
    """Put in cards, with their device files, addresses and npu-smi."""
    for number in range(count):
        write(root, f"/dev/davinci{number}")
        for name, text in (("vendor", "0x19e5"), ("class", "0x120000"), ("device", "0xd802")):
            write(root, f"/sys/bus/pci/devices/0000:4{number}:00.0/{name}", f"{text}\n")
    for manager in MANAGERS:
        write(root, manager)
    write(
        root,
        "/etc/hccn.conf",
        "".join(f"address_{n}=10.0.0.{n + 1}\nnetmask_{n}=255.255.255.0\n" for n in range(count)),
    )
    write(root, "/usr/local/bin/npu-smi").chmod(0o755)
    write(root, "/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
    write(root, "/proc/sys/net/ipv4/ip_local_reserved_ports", "60000-60031\n")


def probe(count: int = 8, **fields: Any) -> dict[str, str]:
    """The command that imports torch_npu, and its answer."""
    answer = {
        "error": "",
        "count": count,
        "memory": [],
        "timeouts": [],
        "torch": "2.9.0+cpu",
        "torch_npu": "2.9.0",
    }
    return {"python3 -m npu_plugins.diagnostics.doctor.probe npus": json.dumps(answer | fields) + "\n"}


def healthy(root: Path, *, environ: Mapping[str, str] | None = None, **fields: Any) -> Machine:
    """An A2 machine with eight NPUs on which nothing is wrong, but for what `environ` and `fields` change."""
    add_cann(root)
    add_driver(root)
    add_npus(root)
    commands = {"npu-smi info": npu_smi(), **probe(), **fields.pop("commands", {})}
    return machine(root, environ={**sourced(), **(environ or {})}, commands=commands, **fields)


def faults(machine: Machine) -> list[Finding]:
    """What the doctor finds wrong."""
    return [finding for finding in examine(machine) if finding.level != "ok"]
