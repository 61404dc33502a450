"""Each fault alone on a machine that is right otherwise: it is named, with its mend, and nothing else is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_plugins.diagnostics.doctor import Finding, Machine, examine
from npu_plugins.diagnostics.doctor.machine import Interface
from tests.diagnostics.doctor import machines
from tests.diagnostics.doctor.machines import GOOD, HOME, faults, write


def the_fault(machine: Machine) -> Finding:
    found = faults(machine)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("environ", "check", "level", "words"),
    [
        ({"ASCEND_RT_VISIBLE_DEVICES": ""}, "devices.visible", "error", "hides every NPU"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0-3"}, "devices.visible", "error", "no list of numbers"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,8,9"}, "devices.visible", "error", "names 8, 9"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1,1"}, "devices.visible", "error", "twice"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "7, 0"}, "devices.visible", "ok", ""),
        ({"NPU_VISIBLE_DEVICES": "0"}, "devices.wrong_variable", "warning", "nothing reads it"),
        ({"DS_ACCELERATOR": "cpu"}, "devices.ds_accelerator", "warning", "will not use the NPU"),
        ({"ACCELERATE_USE_CPU": "1"}, "devices.accelerate_use_cpu", "warning", "leaves DeepSpeed out"),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "variables.autoload", "warning", "does not bring the NPU"),
        ({"HCCL_RDMA_TC": "130"}, "variables.values", "error", "that 4 divides"),
        ({"HCCL_DETERMINISTIC": "yes"}, "variables.values", "error", "one of true, false, strict"),
        (
            {"HCCL_INTRA_PCIE_ENABLE": "1", "HCCL_INTRA_ROCE_ENABLE": "1"},
            "variables.values",
            "error",
            "both 1",
        ),
        ({"OMP_NUM_THREADS": "many"}, "variables.omp_num_threads", "warning", "is ignored"),
        ({"OMP_NUM_THREADS": "400"}, "variables.omp_num_threads", "warning", "192 processors"),
        ({"HCCL_SOCKET_IFNAME": "=eth"}, "network.interface", "error", "matches no interface"),
        ({"HCCL_SOCKET_IFNAME": "^eth"}, "network.interface", "ok", ""),
        ({"HCCL_IF_IP": "192.168.1.9"}, "network.interface", "error", "no interface of this host"),
        ({"HCCL_IF_IP": "eth0"}, "network.interface", "error", "is no address"),
        ({"GLOO_SOCKET_IFNAME": "eth1"}, "network.gloo", "error", "names eth1"),
        ({"MASTER_ADDR": "nowhere"}, "network.master", "error", "cannot be resolved"),
        ({"MASTER_PORT": "70000"}, "network.master", "error", "is no port"),
        (
            {"MASTER_ADDR": "localhost", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
            "network.master",
            "error",
            "the loopback",
        ),
        ({"HCCL_WHITELIST_DISABLE": "0"}, "network.whitelist", "error", "HCCL_WHITELIST_FILE is not set"),
        ({"RANK_TABLE_FILE": "/none.json"}, "network.rank_table", "warning", "meet without it"),
        ({"ATB_HOME_PATH": "/none"}, "cann.atb", "warning", "no folder"),
        ({"ASCEND_OPP_PATH": "/none"}, "cann.set_env", "error", "ASCEND_OPP_PATH is /none"),
        ({"LD_LIBRARY_PATH": "/usr/lib"}, "cann.set_env", "error", "libhccl.so and its like"),
        ({"PYTHONPATH": ""}, "cann.pythonpath", "warning", "operator compiler"),
        ({"ASCEND_HOME_PATH": "/none"}, "cann.installation", "error", "ASCEND_HOME_PATH is /none"),
    ],
)
def test_an_environment(tmp_path: Path, environ: dict[str, str], check: str, level: str, words: str) -> None:
    found = faults(machines.healthy(tmp_path, environ=environ))
    assert [(f.check, f.level) for f in found] == ([(check, level)] if level != "ok" else [])
    assert all(words in f.seen for f in found)


@pytest.mark.parametrize(
    ("packages", "check", "level", "words"),
    [
        ({"torch": None}, "packages.torch", "error", "torch is not installed"),
        ({"torch": "2.7.0", "torch_npu": "2.7.1.post2"}, "packages.torch_npu", "warning", "for torch 2.7.1"),
        ({"torch_npu": "2.9.0.post2"}, "pairs.torch_npu_cann", "error", "made for CANN 9.0.0"),
        ({"torch": "2.8.0", "torch_npu": "2.8.0"}, "pairs.torch_npu_cann", "warning", "the newer 8.5.0"),
        (
            {"torch": "2.13.0", "torch_npu": "2.13.0"},
            "pairs.torch_npu_cann",
            "warning",
            "already needs CANN 9.1.0",
        ),
        ({"torch_npu": "2.9.0.dev1"}, "pairs.torch_npu_cann", "warning", "No table says"),
        ({"deepspeed": None}, "packages.deepspeed", "error", "not installed"),
        ({"accelerate": "1.2.0"}, "packages.accelerate", "error", "needs accelerate>=1.3"),
        ({"scipy": None, "sympy": None}, "packages.for_cann", "warning", "sympy, scipy"),
        ({"numpy": "2.1.0"}, "packages.numpy_for_cann", "warning", "numpy<2.0"),
        ({"ninja": None}, "host.ninja", "warning", "ninja is not installed"),
    ],
)
def test_packages(tmp_path: Path, packages: dict[str, Any], check: str, level: str, words: str) -> None:
    known = {name: version for name, version in {**GOOD, **packages}.items() if version}
    found = the_fault(machines.healthy(tmp_path, packages=known))
    assert (found.check, found.level) == (check, level)
    assert words in found.seen


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            "huggingface-hub>=1.0",
            "transformers 5.24.0 asks for huggingface-hub>=1.0, which is not installed.",
        ),
        ("numpy<1.20", "transformers 5.24.0 asks for numpy<1.20, and 1.26.4 is installed."),
        ("numpy<1.20; python_version < '3.11'", ""),
        ("numpy<1.20; extra == 'old'", ""),
        ("numpy (<1.20", ""),  # no requirement any more
        ("numpy>=1.20", ""),
    ],
)
def test_what_a_package_asks_of_another(tmp_path: Path, asked: str, words: str) -> None:
    def requirements(name: str) -> tuple[str, ...]:
        return {"npu-plugins": machines.ASKED, "transformers": (asked,)}.get(name, ())

    found = faults(machines.healthy(tmp_path, requirements=requirements))
    assert [(f.check, f.seen) for f in found] == ([("packages.requirements", words)] if words else [])


def without(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path.lstrip("/")).unlink()


def rewritten(path: str, text: str) -> Callable[[Path], None]:
    return lambda root: [None, write(root, path, text)][0]


ACCELERATE = "/root/.cache/huggingface/accelerate/default_config.yaml"
DRIVER = "/usr/local/Ascend/driver/version.info"
KERNELS = f"{HOME}/opp/built-in/op_impl/ai_core/tbe/kernel"
MIXED = "runtime_running_version=[7.8.0.1.1:8.5.0]\nopp_running_version=[7.7.0.1.1:8.3.RC1]\n"


@pytest.mark.parametrize(
    ("change", "check", "level", "words"),
    [
        (rewritten(ACCELERATE, "use_cpu: true\n"), "devices.accelerate_config", "warning", "use_cpu: true"),
        (rewritten(ACCELERATE, "use_cpu: false\n"), "devices.accelerate_config", "ok", ""),
        (without("/dev/hisi_hdc"), "devices.files", "error", "/dev/hisi_hdc missing"),
        (without("/usr/local/bin/npu-smi"), "devices.health", "warning", "npu-smi is not in PATH"),
        (
            without("/usr/local/Ascend/driver/lib64/driver/libascend_hal.so"),
            "cann.driver_library",
            "error",
            "no libascend_hal.so",
        ),
        (without(DRIVER), "pairs.cann_driver", "warning", "version is not known"),
        (rewritten(DRIVER, "Version=24.1.rc3\n"), "pairs.cann_driver", "error", "needs 25.0 or newer"),
        (rewritten(DRIVER, "Version=27.0.0\n"), "pairs.cann_driver", "ok", ""),
        (rewritten(f"{HOME}/version.cfg", MIXED), "cann.mixed_parts", "error", "opp 8.3.RC1, runtime 8.5.0"),
        (
            lambda root: (root / KERNELS.lstrip("/") / "ascend910b").rename(
                root / KERNELS.lstrip("/") / "ascend310p"
            ),
            "cann.operators",
            "error",
            "operators for ascend310p, and this machine has ascend910b",
        ),
        (
            rewritten("/usr/local/Ascend/nnal/atb/set_env.sh", ""),
            "cann.atb",
            "warning",
            "has not been sourced",
        ),
        (
            rewritten("/proc/sys/net/ipv4/ip_local_reserved_ports", "60000-60015\n"),
            "network.ports",
            "warning",
            "60000 to 60031",
        ),
        (
            rewritten("/etc/hccn.conf", "address_0=10.0.0.1\n"),
            "network.npu_addresses",
            "warning",
            "NPU 1, 2, 3",
        ),
        (
            rewritten("/etc/hccn.conf", "".join(f"address_{n}=10.0.0.1\n" for n in range(8))),
            "network.npu_addresses",
            "error",
            "one address",
        ),
    ],
)
def test_files(tmp_path: Path, change: Callable[[Path], None], check: str, level: str, words: str) -> None:
    machine = machines.healthy(tmp_path)
    change(tmp_path)
    found = faults(machine)
    assert [(f.check, f.level) for f in found] == ([(check, level)] if level != "ok" else [])
    assert all(words in f.seen for f in found)


@pytest.mark.parametrize(
    ("said", "check", "level", "words"),
    [
        (machines.npu_smi(npu3="Alarm"), "devices.health", "error", "NPU 3 (910B3) is Alarm"),
        (machines.npu_smi(npu3="Warning"), "devices.health", "warning", "NPU 3 (910B3) is Warning"),
        (
            machines.npu_smi().replace("3397 / 65536", "60887 / 65536", 1)
            + "\n| 0       0                 | 3180736       | python3                  | 57490            |",
            "devices.memory",
            "warning",
            "NPU 0: 60887 of 65536 MiB are used, by python3 (pid 3180736, 57490 MiB)",
        ),
    ],
)
def test_what_npu_smi_says(tmp_path: Path, said: str, check: str, level: str, words: str) -> None:
    found = the_fault(machines.healthy(tmp_path, commands={"npu-smi info": said}))
    assert (found.check, found.level) == (check, level)
    assert words in found.seen


@pytest.mark.parametrize(
    ("fields", "check", "level", "words"),
    [
        (
            {"may_open": lambda path: "davinci2" not in path.name},
            "devices.files",
            "error",
            "User ann may not",
        ),
        (
            {"space": lambda path: (64 << 20, 64 << 20)},
            "host.shared_memory",
            "warning",
            "/dev/shm has 64 MiB",
        ),
        (
            {"limit": {**machines.LIMITS, "RLIMIT_NOFILE": 1024}.get},
            "host.open_files",
            "warning",
            "open 1024",
        ),
        (
            {"limit": {**machines.LIMITS, "RLIMIT_MEMLOCK": 65536}.get},
            "host.locked_memory",
            "warning",
            "64 KiB",
        ),
        (
            {"limit": {**machines.LIMITS, "RLIMIT_NPROC": 512}.get},
            "host.processes",
            "warning",
            "512 processes",
        ),
        ({"hostname": "node9"}, "network.hostname", "warning", "node9 cannot be resolved"),
        ({"python": (3, 9, 1)}, "packages.python", "error", "3.10 or newer"),
        (
            {"interfaces": lambda: [Interface("docker0", True, ("172.17.0.1",))]},
            "network.interface",
            "warning",
            "would meet on docker0",
        ),
        ({"commands": {"g++ --version": "g++ (GCC) 7.3.0"}}, "host.compiler", "warning", "too old"),
        ({"commands": machines.probe(count=0)}, "runtime.torch_npu", "error", "device_count() is 0"),
        (
            {"commands": machines.probe(error="RuntimeError: x")},
            "runtime.torch_npu",
            "error",
            "RuntimeError: x",
        ),
        ({"commands": machines.probe(timeouts=["Too short."])}, "runtime.timeouts", "warning", "Too short."),
        ({"commands": {next(iter(machines.probe())): "boom"}}, "runtime.torch_npu", "error", "'boom'"),
    ],
)
def test_the_host(tmp_path: Path, fields: dict[str, Any], check: str, level: str, words: str) -> None:
    found = the_fault(machines.healthy(tmp_path, **fields))
    assert (found.check, found.level) == (check, level)
    assert words in found.seen


def test_a_lock_that_a_dead_build_left(tmp_path: Path) -> None:
    machine = machines.healthy(tmp_path)
    lock = write(tmp_path, "/root/.cache/torch_extensions/py311_cpu/cpu_adam/lock")
    os.utime(lock, (1e9 - 7200, 1e9 - 7200))
    found = the_fault(machine)
    assert found.check == "host.build_lock" and "2.0 h old" in found.seen
    assert found.mend == "rm /root/.cache/torch_extensions/py311_cpu/cpu_adam/lock."
    os.utime(lock, (1e9 - 60, 1e9 - 60))  # a build that runs
    assert faults(machine) == []


def test_libraries_of_two_canns(tmp_path: Path) -> None:
    other = "/usr/local/Ascend/ascend-toolkit/8.1.RC1"
    machines.add_cann(tmp_path, other, "8.1.RC1")
    path = f"{machines.sourced()['LD_LIBRARY_PATH']}:{other}/lib64"
    found = the_fault(machines.healthy(tmp_path, environ={"LD_LIBRARY_PATH": path}))
    assert found.check == "cann.two_environments" and other in found.seen


def test_cards_without_a_driver(tmp_path: Path) -> None:
    machine = machines.machine(tmp_path)
    machines.add_npus(tmp_path, 2)
    for number in range(2):
        (tmp_path / f"dev/davinci{number}").unlink()
    found = {finding.check: finding for finding in faults(machine)}
    assert "The PCI bus has 2 NPU(s) (0xd802)" in found["platform.npus"].seen
    assert "There is no CANN in the usual places" in found["cann.installation"].seen


def test_npus_that_a_container_numbers_anew(tmp_path: Path) -> None:
    machine = machines.healthy(tmp_path)
    for number in range(8):
        if number not in (3, 5):
            (tmp_path / f"dev/davinci{number}").unlink()

    def levels(value: str) -> list[str]:
        environ = {**machine.environ, "ASCEND_RT_VISIBLE_DEVICES": value}
        return [f.level for f in examine(dataclasses.replace(machine, environ=environ), ["devices.visible"])]

    assert (levels("3,5"), levels("0,1"), levels("2")) == (["ok"], ["ok"], ["error"])
