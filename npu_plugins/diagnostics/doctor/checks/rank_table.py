"""RANK_TABLE_FILE: the file that tells HCCL which NPU of which machine is which rank.

Sources: CANN 9.0.0, rank table configuration (Atlas A2); torch_npu, docs of RANK_TABLE_FILE.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from typing import Any

from npu_plugins.diagnostics.doctor import driver
from npu_plugins.diagnostics.doctor.finding import Finding, error, ok, warning
from npu_plugins.diagnostics.doctor.machine import Machine

_CHECK = "network.rank_table"


def rank_table(machine: Machine) -> Iterator[Finding]:
    """A rank table that is named can be read and makes sense."""
    place = machine.setting("RANK_TABLE_FILE")
    if place is None:
        return
    path = machine.path(place)
    if path.is_symlink():
        yield error(_CHECK, f"RANK_TABLE_FILE={place} is a link, which is refused.", "Name the file itself.")
        return
    text = machine.read(place)
    if text is None:
        yield warning(
            _CHECK,
            f"RANK_TABLE_FILE={place} cannot be read: the ranks meet without it.",
            "Name the file by its absolute path, or unset RANK_TABLE_FILE.",
        )
        return
    mend = "Write the table anew, or unset RANK_TABLE_FILE: ranks on one network need none."
    try:
        table = json.loads(text)
        faults = list(_faults(table, machine))
        ranks = sum(len(server["device"]) for server in table["server_list"])
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        yield error(_CHECK, f"{place} is no rank table ({type(failure).__name__}: {failure}).", mend)
        return
    if faults:
        yield error(_CHECK, f"The rank table {place} is wrong: {'; '.join(faults)}.", mend)
    else:
        yield ok(
            _CHECK, f"The rank table {place} names {ranks} ranks on {len(table['server_list'])} machines."
        )


def _faults(table: Mapping[str, Any], machine: Machine) -> Iterator[str]:
    """Yield what is wrong; a table without a field that all have raises KeyError."""
    if table["status"] != "completed":
        yield f"its status is {table['status']!r}, not 'completed'"
    servers = table["server_list"]
    if str(table.get("server_count", len(servers))) != str(len(servers)):
        yield f"server_count is {table['server_count']}, but it lists {len(servers)}"
    names = [server["server_id"] for server in servers]
    if len(set(names)) < len(names):
        yield "two machines have one server_id"
    devices = [device for server in servers for device in server["device"]]
    ranks = sorted(int(device["rank_id"]) for device in devices)
    if ranks != list(range(len(devices))):
        yield f"its rank_ids are {_short(ranks)}, not 0 to {len(devices) - 1}"
    for server in servers:
        numbers = [int(device["device_id"]) for device in server["device"]]
        if len(set(numbers)) < len(numbers):
            yield f"machine {server['server_id']} names a device twice"
    addresses = [device["device_ip"] for device in devices if device.get("device_ip")]
    for address in addresses:
        if not _is_address(address):
            yield f"device_ip {address!r} is no address"
    if len(set(addresses)) < len(addresses):
        yield "two devices have one device_ip"
    if len(servers) > 1 and len(addresses) < len(devices):
        yield "with several machines every device needs a device_ip"
    yield from _against_job(servers, len(devices), machine)


def _against_job(servers: list[Any], devices: int, machine: Machine) -> Iterator[str]:
    world = machine.setting("WORLD_SIZE")
    if world and world.isdecimal() and int(world) != devices:
        yield f"it names {devices} ranks, but WORLD_SIZE is {world}"
    present = driver.device_numbers(machine)
    own = {address for i in machine.interfaces() for address in i.addresses} | {machine.hostname}
    for server in servers:
        if server["server_id"] in own and present:
            absent = [d["device_id"] for d in server["device"] if int(d["device_id"]) not in present]
            if absent:
                yield f"this machine has no device {', '.join(map(str, absent))}"


def _is_address(text: Any) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _short(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) <= 16 else f"{str(numbers[:16])[:-1]}, ...]"
