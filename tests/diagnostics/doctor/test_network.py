"""The host's network: whitelist, rank table, the interface and the ports of HCCL."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from npu_plugins.diagnostics.doctor import examine
from npu_plugins.diagnostics.doctor.checks.network import matches
from npu_plugins.diagnostics.doctor.machine import Interface
from tests.diagnostics.doctor import machines
from tests.diagnostics.doctor.machines import faults, write


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        ('{"host_ip": ["192.168.1.7", "192.168.1.8"], "device_ip": []}', None),
        ('{"host_ip": ["192.168.1.8"]}', "names no address of this host"),
        ('["192.168.1.7"]', "has no list of addresses"),
        ('{"host_ip": ["node1"]}', "has no list of addresses"),
    ],
)
def test_a_whitelist(tmp_path: Path, allowed: str, words: str | None) -> None:
    write(tmp_path, "/home/whitelist", allowed)
    environ = {"HCCL_WHITELIST_DISABLE": "0", "HCCL_WHITELIST_FILE": "/home/whitelist"}
    found = faults(machines.healthy(tmp_path, environ=environ))
    assert [finding.check for finding in found] == (["network.whitelist"] if words else [])
    assert all(words is not None and words in finding.seen for finding in found)


def rank_table(**changes: Any) -> dict[str, Any]:
    def server(name: str, first: int) -> dict[str, Any]:
        devices = [
            {"device_id": str(n), "device_ip": f"10.0.{first}.{n + 1}", "rank_id": str(first + n)}
            for n in range(2)
        ]
        return {"server_id": name, "device": devices}

    table = {"status": "completed", "version": "1.0", "server_count": "2"}
    return {**table, "server_list": [server("192.168.1.7", 0), server("192.168.1.8", 2)], **changes}


def with_device(field: str, value: str) -> dict[str, Any]:
    table = rank_table()
    table["server_list"][0]["device"][1][field] = value
    return table


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (rank_table(), None),
        (rank_table(status="initializing"), "its status is 'initializing'"),
        (rank_table(server_count="3"), "server_count is 3, but it lists 2"),
        (with_device("rank_id", "0"), "its rank_ids are [0, 0, 2, 3], not 0 to 3"),
        (with_device("device_id", "0"), "machine 192.168.1.7 names a device twice"),
        (with_device("device_id", "9"), "this machine has no device 9"),
        (with_device("device_ip", "10.0.0"), "device_ip '10.0.0' is no address"),
        (with_device("device_ip", "10.0.2.1"), "two devices have one device_ip"),
        (with_device("device_ip", ""), "every device needs a device_ip"),
        ({"status": "completed"}, "is no rank table (KeyError: 'server_list')"),
        ([], "is no rank table"),
    ],
)
def test_a_rank_table(tmp_path: Path, table: Any, words: str | None) -> None:
    write(tmp_path, "/home/table.json", json.dumps(table))
    found = faults(
        machines.healthy(tmp_path, environ={"RANK_TABLE_FILE": "/home/table.json", "WORLD_SIZE": "4"})
    )
    assert [finding.check for finding in found] == (["network.rank_table"] if words else [])
    assert all(words is not None and words in finding.seen for finding in found)


@pytest.mark.parametrize(
    ("wanted", "name", "expected"),
    [  # the examples of CANN's documentation
        ("eth,enp", "enp1", True),
        ("eth,enp", "docker0", False),
        ("^eth,enp", "eth1", False),
        ("^eth,enp", "bond0", True),
        ("=eth0,endvnic", "endvnic", True),
        ("=eth0,endvnic", "eth01", False),
        ("^=eth0,enp0", "eth0", False),
        ("^=eth0,enp0", "eth01", True),
    ],
)
def test_hccl_socket_ifname(wanted: str, name: str, expected: bool) -> None:
    assert matches(wanted, name) is expected


def test_the_interface_is_chosen_as_hccl_does(tmp_path: Path) -> None:
    known = [
        Interface("lo", True, ("127.0.0.1",)),
        Interface("docker0", True, ("172.17.0.1",)),
        Interface("enp3", True, ("10.1.1.1",)),
        Interface("bond0", False, ("10.2.2.2",)),
    ]
    machine = machines.healthy(tmp_path, interfaces=lambda: known)
    (chosen,) = examine(machine, ["network.interface"])
    assert chosen.seen == "HCCL meets on enp3 (10.1.1.1): the first by name."
    named = dataclasses.replace(machine, environ={**machine.environ, "HCCL_SOCKET_IFNAME": "docker"})
    (chosen,) = examine(named, ["network.interface"])
    assert chosen.seen == "HCCL meets on docker0 (172.17.0.1): HCCL_SOCKET_IFNAME=docker."


@pytest.mark.parametrize(
    ("value", "right"),
    [  # the first four are the examples of CANN's documentation
        ("60000-60050", True),
        ("60000,60050-60100,60150-60160", True),
        ("56000,56005,56007,56008,56100,56105,56107,56108", True),
        ("auto", True),
        ("60000-", False),
        ("60050-60000", False),
        ("60000-60050,60050", False),
        ("70000", False),
        ("0-10", False),
        ("any", False),
    ],
)
def test_a_range_of_ports(tmp_path: Path, value: str, right: bool) -> None:
    found = faults(machines.healthy(tmp_path, environ={"HCCL_HOST_SOCKET_PORT_RANGE": value}))
    assert [(f.check, f.level) for f in found] == ([] if right else [("network.ports", "error")])
