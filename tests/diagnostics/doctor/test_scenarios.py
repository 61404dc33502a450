"""The doctor's words on whole machines: the snapshot of each is what a user reads there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from npu_plugins.cli import main
from npu_plugins.diagnostics.doctor import Machine, examine, this_machine
from npu_plugins.diagnostics.doctor.checks.platform import is_there
from npu_plugins.diagnostics.doctor.report import as_text, exit_status
from npu_plugins.simulator.build import ensure_built
from tests.diagnostics.doctor import machines

SNAPSHOTS = Path(__file__).parent / "snapshots"
# What does not depend on the host that the tests run on.
EVERYWHERE = (
    "platform.npus",
    "packages.torch_pair",
    "toolkit.installation",
    "toolkit.environment",
    "pairs.cann_and_driver",
    "devices.visible",
    "network.interface",
    "runtime.simulator",
    "runtime.import_torch_npu",
)


def here(**variables: str) -> Machine:
    """This machine, in an environment that names no NPU but by `variables`."""
    foreign = ("NPU_SIM", "ASCEND", "CUDA", "NCCL", "HCCL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    cache = {name: os.environ[name] for name in ("NPU_SIM_CACHE",) if name in os.environ}
    found = this_machine({**kept, **cache, **variables})
    if is_there(this_machine(kept)):
        pytest.skip("this machine has an NPU")
    return found


def check_snapshot(name: str, text: str) -> None:
    """Compare with snapshots/<name>.txt; DOCTOR_SNAPSHOTS=write makes it anew, to be read by you."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("DOCTOR_SNAPSHOTS") == "write":
        path.write_text(text + "\n")
        pytest.fail(f"{path.name} is written: read it, then run the test without DOCTOR_SNAPSHOTS")
    assert text + "\n" == path.read_text()


def normalised(text: str) -> str:
    return re.sub(r"\d+\.\d+\.\d+(\S*?)(?=[ .,]|$)", "N.N.N", text, flags=re.MULTILINE)


@pytest.mark.npu
def test_this_machine_without_simulated_npus() -> None:
    findings = examine(here(), EVERYWHERE)
    check_snapshot("without_npu", normalised(as_text(findings)))
    assert exit_status(findings) == 1


@pytest.mark.npu
def test_this_machine_with_simulated_npus() -> None:
    ensure_built()
    # A simulated machine of its own: memory that other jobs use is none of this test's business.
    node = f"doctor-{os.getpid()}"
    findings = examine(here(NPU_SIM="2", NPU_SIM_HBM="1GiB", NPU_SIM_NODE=node), EVERYWHERE)
    check_snapshot("simulated", normalised(as_text(findings)))
    assert exit_status(findings) == 0


def test_a_machine_on_which_nothing_is_wrong(tmp_path: Path) -> None:
    findings = examine(machines.healthy(tmp_path))
    check_snapshot("healthy", as_text(findings))
    assert exit_status(findings, strict=True) == 0


def test_cann_that_is_half_installed(tmp_path: Path) -> None:
    whole = machines.healthy(tmp_path)
    for part in ("lib64/libhccl.so", "lib64/libgraph.so"):
        (tmp_path / machines.HOME.lstrip("/") / part).unlink()
    kernels = tmp_path / machines.HOME.lstrip("/") / "opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b"
    (kernels / "ops_math").rename(kernels / "ops_oam")
    findings = examine(whole)
    check_snapshot("half_installed_cann", as_text(findings, quiet=True))
    assert exit_status(findings) == 1


def test_versions_that_do_not_belong_together(tmp_path: Path) -> None:
    home = "/usr/local/Ascend/ascend-toolkit/latest"
    machines.add_cann(tmp_path, home, "8.0.0")
    machines.add_driver(tmp_path, "23.0.3", "7.3.0.1.231", "[6.4.0,6.4.99],[7.0.0,7.2.99]")
    machines.add_npus(tmp_path)
    found = machines.machine(
        tmp_path,
        environ=machines.sourced(home),
        packages={**machines.GOOD, "torch_npu": "2.8.0.post2", "transformers": "4.57.1"},
        commands={"npu-smi info": machines.npu_smi()},
        python=(3, 14, 0),
    )
    findings = examine(found)
    check_snapshot("mismatched_versions", as_text(findings, quiet=True))
    assert exit_status(findings) == 1


def test_wrong_variables(tmp_path: Path) -> None:
    wrong = {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "INFO",
        "HCCL_SOCKET_IFNAMES": "eth0",
        "HCCL_CONNECT_TIMEOUT": "60",
    }
    findings = examine(machines.healthy(tmp_path, environ=wrong))
    check_snapshot("wrong_variables", as_text(findings, quiet=True))
    assert exit_status(findings) == 1


def test_no_torch_npu(tmp_path: Path) -> None:
    packages = {name: version for name, version in machines.GOOD.items() if name != "torch_npu"}
    findings = examine(machines.healthy(tmp_path, packages=packages))
    check_snapshot("no_torch_npu", as_text(findings, quiet=True))
    assert exit_status(findings) == 1


def test_set_env_sh_that_was_not_sourced(tmp_path: Path) -> None:
    empty = dict.fromkeys(machines.sourced(), "")
    findings = examine(
        machines.healthy(tmp_path, environ=empty, commands=machines.probe(error="ImportError: libhccl.so"))
    )
    check_snapshot("set_env_not_sourced", as_text(findings, quiet=True))
    assert exit_status(findings) == 1


def test_the_command_prints_json_and_ends_with_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here()  # skips where there is an NPU
    for name in [name for name in os.environ if name.startswith(("NPU_SIM", "ASCEND"))]:
        monkeypatch.delenv(name)
    assert main(["doctor", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["level"] == "error"
    assert sum(said["counts"].values()) == len(said["findings"])
    assert {"check": "platform.npus", "level": "error"}.items() <= {
        key: value
        for finding in said["findings"]
        if finding["check"] == "platform.npus"
        for key, value in finding.items()
    }.items()
