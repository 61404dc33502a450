"""Which variables choose NPUs, and which go to the other nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.accelerator.environment import (
    EXPORTED_PREFIXES,
    is_first_local_rank,
    mistaken_device_variables,
    parse_devices,
    set_visible_devices,
)


@given(st.lists(st.integers(0, 63), min_size=1, max_size=16))
def test_devices_survive_the_environment(devices: list[int]) -> None:
    environ: dict[str, str] = {}
    set_visible_devices(environ, devices)
    assert parse_devices(environ["ASCEND_RT_VISIBLE_DEVICES"]) == devices


def test_ranges_of_devices() -> None:
    assert parse_devices("0-2, 5") == [0, 1, 2, 5]


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "0-", "all"])
def test_other_text_is_no_list_of_devices(text: str) -> None:
    with pytest.raises(ValueError, match="neither a device number nor a range"):
        parse_devices(text)


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "NPU_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "ASCEND_DEVICE_ID"]
)
def test_a_variable_that_chooses_no_npu_is_named(name: str) -> None:
    warning = mistaken_device_variables({name: "2,3"}, device_count=8)
    assert warning is not None
    assert f"{name}=2,3 does not choose NPUs" in warning
    assert "ASCEND_RT_VISIBLE_DEVICES=2,3" in warning
    assert "all 8" in warning


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "-1"},  # the common way to turn CUDA off
        {"CUDA_VISIBLE_DEVICES": "0", "ASCEND_RT_VISIBLE_DEVICES": "0"},
        {"ASCEND_VISIBLE_DEVICES": "0-7"},  # a container with all devices
        {"ASCEND_VISIBLE_DEVICES": "Ascend910-0"},
    ],
)
def test_no_warning_without_a_reason(environ: dict[str, str]) -> None:
    assert mistaken_device_variables(environ, device_count=8) is None


@pytest.mark.parametrize(
    "variable",
    [
        "DS_ACCELERATOR",
        "TORCH_DEVICE_BACKEND_AUTOLOAD",
        "TORCHINDUCTOR_CACHE_DIR",
        "PYTORCH_NPU_ALLOC_CONF",
        "OMP_NUM_THREADS",
        "HCCL_CONNECT_TIMEOUT",
        "HCCL_TIMEOUT",
        "DEEPSPEED_TIMEOUT",
        "ASCEND_RT_VISIBLE_DEVICES",
        "ASCEND_LAUNCH_BLOCKING",
        "NPU_SIM",
        "TASK_QUEUE_ENABLE",
        "LD_LIBRARY_PATH",
        "PATH",
    ],
)
def test_variables_of_a_job_reach_every_node(variable: str) -> None:
    assert variable.startswith(EXPORTED_PREFIXES)


@pytest.mark.parametrize(
    "variable", ["HOME", "HOSTNAME", "USER", "RANK", "LOCAL_RANK", "MASTER_ADDR", "SSH_AUTH_SOCK", "HF_TOKEN"]
)
def test_variables_of_a_node_stay_there(variable: str) -> None:
    assert not variable.startswith(EXPORTED_PREFIXES)


@pytest.mark.parametrize(
    ("rank", "first"), [(None, True), ("", True), ("0", True), ("1", False), ("7", False)]
)
def test_one_process_of_a_machine_speaks(rank: str | None, first: bool) -> None:
    assert is_first_local_rank({} if rank is None else {"LOCAL_RANK": rank}) is first
