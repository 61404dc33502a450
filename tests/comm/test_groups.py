"""GroupOptions: what HCCL is told of a group, and what is refused before it is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from npu_plugins.comm import CommError
from npu_plugins.comm.groups import GroupOptions
from npu_plugins.comm.topology import ALL_AXES


def test_one_value_is_for_all_axes_and_a_mapping_for_some() -> None:
    options = GroupOptions.by_axis(
        "cpu:gloo,npu:hccl",
        timeout=timedelta(seconds=77),
        qos_traffic_class={"dp": 100, "tp": 0},
        qos_service_level={"dp": 3},
        op_expansion_mode={"tp": "aiv"},
        hccl_buffer_mib=None,
    )
    assert set(options) == set(ALL_AXES)
    assert {each.timeout for each in options.values()} == {timedelta(seconds=77)}
    assert options["dp"].hccl_config("dp", environ={}) == {
        "qos_traffic_class": 100,
        "qos_service_level": 3,
        "group_name": "dp",
        "hccl_exec_timeout": 62,  # 47 s is the watch's, 77 s torch's
    }
    assert options["tp"].hccl_config(environ={"HCCL_EXEC_TIMEOUT": "9"}) == {
        "qos_traffic_class": 0,
        "hccl_op_expansion_mode": 3,
    }, "the variable of the user stays in force"
    assert GroupOptions().hccl_config() == {}
    assert GroupOptions().hccl_config("a" * 40) == {"group_name": "a" * 31}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hccl_buffer_mib": 0}, "hccl_buffer_mib is 0; give a whole number of MiB from 1"),
        ({"hccl_buffer_mib": True}, "hccl_buffer_mib is True"),
        ({"timeout": timedelta(0)}, "timeout is 0:00:00; give a time above 0"),
        ({"qos_traffic_class": 256}, "qos_traffic_class is 256; give a whole number from 0 to 252"),
        ({"qos_traffic_class": 101}, "qos_traffic_class is 101; give a multiple of 4"),
        ({"qos_service_level": 8}, "qos_service_level is 8; give a whole number from 0 to 7"),
        ({"qos_service_level": "4"}, "qos_service_level is '4'"),
        ({"op_expansion_mode": "AIV"}, "op_expansion_mode is 'AIV'; give one of host, ai_cpu, aiv"),
    ],
)
def test_what_hccl_would_refuse_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CommError, match=sentence):
        GroupOptions(**options)
    with pytest.raises(CommError, match=f"Of axis pp, {sentence}"):
        GroupOptions.by_axis("hccl", **{name: {"pp": value} for name, value in options.items()})


@pytest.mark.parametrize(
    "option", ["hccl_buffer_mib", "qos_traffic_class", "qos_service_level", "op_expansion_mode"]
)
def test_options_of_hccl_want_hccl(option: str) -> None:
    with pytest.raises(
        CommError, match=f"{option} is for backend hccl, but the groups use gloo; leave it out"
    ):
        GroupOptions.by_axis("gloo", **{option: 4})
    with pytest.raises(CommError, match=f"{option} is given for axis 'cp'; a mesh's axes are tp, dp"):
        GroupOptions.by_axis("hccl", **{option: {"cp": 4}})
