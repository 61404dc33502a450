"""What npu-smi prints, versions as Huawei writes them, and the tables of what belongs together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_plugins.accelerator.environment import MISTAKEN_DEVICE_VARIABLES
from npu_plugins.diagnostics.doctor import npu_smi, versions
from npu_plugins.diagnostics.doctor.npu_smi import Chip, Process
from npu_plugins.diagnostics.doctor.tables import compatibility, variables

A3 = """
+------------------------------------------------------------------------------------------------+
| npu-smi 25.3.rc1                 Version: 25.3.rc1                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 166.1       37                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3160 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | Warning       | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          2872 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 0       1                 | 3180736       | python                   | 60889                   |
+===========================+===============+====================================================+
"""
INFERENCE_CARD = """
| npu-smi 23.0.0                                   Version: 23.0.0                                       |
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 6       310P3                 | OK              | NA           50                0     / 0             |
| 0       0                     | 0000:84:00.0    | 0            1839 / 21525                            |
"""


def test_npu_smi_of_an_a3() -> None:
    found = npu_smi.parse(A3)
    assert found.version == "25.3.rc1"
    assert found.chips == (
        Chip(0, 0, "Ascend910", "OK", 3160, 65536),
        Chip(0, 1, "Ascend910", "Warning", 2872, 65536),
    )
    assert [chip.label for chip in found.chips] == ["NPU 0", "NPU 0 chip 1"]
    assert found.processes == (Process(0, 1, 3180736, "python", 60889),)


def test_npu_smi_of_a_card_without_hbm() -> None:
    assert npu_smi.parse(INFERENCE_CARD).chips == (Chip(6, 0, "310P3", "OK", 1839, 21525),)


def test_npu_smi_that_sees_nothing() -> None:
    assert npu_smi.parse("DrvMngGetConsoleLogLevel failed. (ret=4)\n").chips == ()


def test_versions_in_their_order() -> None:
    cann = [
        "7.0.0",
        "8.0.RC1",
        "8.0.RC2.alpha002",
        "8.0.RC3",
        "8.0.0",
        "8.1.RC1",
        "8.5.0.alpha001",
        "8.5.0",
        "9.1.0-beta.3",
    ]
    drivers = ["23.0.3", "24.1.rc1", "24.1.rc3.b999", "24.1.0", "25.0.rc1.1", "25.5.0", "26.0.RC1"]
    packages = ["2.7.1", "2.7.1.post2", "2.7.1.post10", "2.8.0", "2.13.0+cpu"]
    for texts in (cann, drivers, packages):
        parsed = [versions.parse(text) for text in texts]
        assert None not in parsed
        assert sorted(parsed, key=lambda version: version or versions.parse("0")) == parsed  # type: ignore[type-var]
    assert versions.parse("not known") is None
    assert versions.series("25.5.1") == "25.5"
    assert versions.same_release("8.5.0", "8.5.2") and not versions.same_release("8.5.0", "8.3.RC1")
    assert not versions.same_release("?", "?")


def test_the_table_of_versions_holds_together() -> None:
    table = compatibility()
    for row in table.content["torch_npu"]:
        pair = table.row(row["torch_npu"])
        assert pair is not None and pair.torch_npu.startswith(pair.torch)
        assert versions.parse(pair.cann) is not None
        assert table.pythons(pair.torch), pair
        drivers = table.drivers(pair.cann)
        assert drivers is not None, pair
        assert versions.series(drivers.released_with) in drivers.drivers
        order = [versions.parse(driver) for driver in drivers.drivers]
        assert order == sorted(order, key=str)
    assert table.row("2.9.0+local") == table.row("2.9.0") and table.row("9.9.9") is None
    assert set(table.content["sources"]) == set(table.content) - {"sources"}


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("910B3", "ascend910b"),
        ("910B", "ascend910"),
        ("910B4-1", "ascend910b"),
        ("Ascend910", "ascend910_93"),
        ("310P3", "ascend310p"),
    ],
)
def test_chips_by_the_name_that_npu_smi_shows(name: str, kernels: str) -> None:
    chip = compatibility().chip(name=name)
    assert chip is not None and chip.kernels == kernels


def test_what_is_called_tested_is_what_the_tests_install() -> None:
    text = (Path(__file__).parents[3] / "requirements" / "tested.txt").read_text()
    for name, version in compatibility().content["tested"].items():
        assert re.search(rf"^{name}=={re.escape(version)}\b", text, re.MULTILINE), name


def test_no_variable_is_both_right_and_wrong() -> None:
    table = variables()
    assert not set(table["hccl"]) & (set(table["mistaken"]) | set(MISTAKEN_DEVICE_VARIABLES))
    for name, advice in table["mistaken"].items():
        assert advice.get("use") or advice.get("note"), name
        if advice.get("use", "").startswith("HCCL_"):
            assert advice["use"] in table["hccl"]
