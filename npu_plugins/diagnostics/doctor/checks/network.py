"""The host's network as HCCL uses it to bring ranks together: interfaces, ports, names, whitelist.

Sources: CANN's documentation of HCCL_SOCKET_IFNAME, HCCL_IF_IP, HCCL_IF_BASE_PORT and HCCL_WHITELIST_FILE.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Sequence

from npu_plugins.diagnostics.doctor import driver
from npu_plugins.diagnostics.doctor.cann import value_of
from npu_plugins.diagnostics.doctor.checks.platform import is_there
from npu_plugins.diagnostics.doctor.finding import Finding, error, ok, warning
from npu_plugins.diagnostics.doctor.machine import Interface, Machine

_BASE_PORT, _PORTS = 60000, 32  # ports that HCCL takes from the base on (16 before CANN 8.2)


def interface(machine: Machine) -> Iterator[Finding]:
    """HCCL finds an interface to meet on, and it is the one that was meant."""
    check = "network.interface"
    if not is_there(machine):
        return
    known, address = machine.interfaces(), machine.setting("HCCL_IF_IP")
    if address is not None:
        yield _by_address(check, address, known)
        return
    wanted = machine.setting("HCCL_SOCKET_IFNAME")
    matching = [i for i in known if wanted is None or matches(wanted, i.name)]
    usable = sorted((i for i in matching if i.up and i.addresses), key=_preference)
    listed = ", ".join(i.name + ("" if i.up else " (down)") for i in known) or "none"
    if not usable and wanted is not None:
        yield error(
            check,
            f"HCCL_SOCKET_IFNAME={wanted} matches no interface that is up and has an address; there"
            f" are: {listed}.",
            "export HCCL_SOCKET_IFNAME==<name> of the interface that leads to the other machines.",
        )
    elif not usable:
        yield error(check, f"No interface is up and has an address; there are: {listed}.", "Bring one up.")
    elif wanted is None and _preference(usable[0])[0] > 0:
        yield warning(
            check,
            f"HCCL would meet on {usable[0].name} ({usable[0].addresses[0]}), where only this"
            " machine is heard.",
            "With several machines, bring up an interface between them.",
        )
    else:
        reason = f"HCCL_SOCKET_IFNAME={wanted}" if wanted else "the first by name"
        yield ok(check, f"HCCL meets on {usable[0].name} ({usable[0].addresses[0]}): {reason}.")


def gloo(machine: Machine) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME, if it is set, names interfaces that exist and are up."""
    wanted = machine.setting("GLOO_SOCKET_IFNAME")
    if wanted is None:
        return
    up = {i.name for i in machine.interfaces() if i.up and i.addresses}
    lacking = [name for name in wanted.split(",") if name not in up]
    if lacking:
        yield error(
            "network.gloo",
            f"GLOO_SOCKET_IFNAME={wanted} names {', '.join(lacking)}, which is not up here; there are: "
            f"{', '.join(sorted(up)) or 'none'}.",
            "Name an interface that is up on every machine.",
        )
    else:
        yield ok("network.gloo", f"gloo meets on {wanted}.")


def names(machine: Machine) -> Iterator[Finding]:
    """This host's name and the name of the first rank's host can be resolved."""
    check = "network.hostname"
    try:
        address = machine.resolve(machine.hostname)
    except OSError as failure:
        yield warning(
            check,
            f"The host name {machine.hostname} cannot be resolved ({failure}); gloo then uses the loopback.",
            f"Add `<address> {machine.hostname}` to /etc/hosts, or export GLOO_SOCKET_IFNAME=<interface>.",
        )
    else:
        aside = ""
        if address.startswith("127.") and not machine.setting("GLOO_SOCKET_IFNAME"):
            aside = ", the loopback: with several machines, export GLOO_SOCKET_IFNAME=<interface>"
        yield ok(check, f"The host name {machine.hostname} is {address}{aside}.")
    yield from _master(machine)


def ports(machine: Machine) -> Iterator[Finding]:
    """The ports that HCCL listens on are kept from being given to others."""
    check, given = "network.ports", False
    for name in ("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE"):
        value = machine.setting(name)
        if value is not None and not _is_port_range(value):
            yield error(
                check,
                f"{name}={value} is neither auto nor ports and ranges from 1 to 65535, each once.",
                f"export {name}=60000-60050, or 60000,60050-60100, or auto.",
            )
        given |= value is not None and "HOST" in name
    if given or not is_there(machine):
        return
    base = machine.setting("HCCL_IF_BASE_PORT")
    first = int(base) if base and base.isascii() and base.isdecimal() else _BASE_PORT
    last = first + _PORTS - 1
    ephemeral = (machine.read("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    reserved = _port_set(machine.read("/proc/sys/net/ipv4/ip_local_reserved_ports") or "")
    if len(ephemeral) != 2 or not all(text.isdecimal() for text in ephemeral):
        return
    low, high = map(int, ephemeral)
    loose = [port for port in range(first, last + 1) if low <= port <= high and port not in reserved]
    if loose:
        yield warning(
            check,
            f"HCCL listens on ports {first} to {last}, which the kernel also gives to any program"
            f" (it gives {low} to {high}): a job can fail to start now and then.",
            f"sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last}.",
        )
    else:
        yield ok(check, f"The kernel gives HCCL's ports {first} to {last} to nobody else.")


def whitelist(machine: Machine) -> Iterator[Finding]:
    """A whitelist that is switched on exists and names this host."""
    check = "network.whitelist"
    if machine.setting("HCCL_WHITELIST_DISABLE") != "0":
        return
    mend = "export HCCL_WHITELIST_DISABLE=1, or give HCCL_WHITELIST_FILE the absolute path of a file such as "
    mend += '{"host_ip": ["192.168.1.1", "192.168.1.2"], "device_ip": []} with all hosts.'
    place = machine.setting("HCCL_WHITELIST_FILE")
    if place is None:
        yield error(check, "HCCL_WHITELIST_DISABLE=0, but HCCL_WHITELIST_FILE is not set.", mend)
        return
    text = machine.read(place)
    if text is None:
        yield error(check, f"HCCL_WHITELIST_FILE={place} cannot be read.", mend)
        return
    try:
        allowed = {str(ipaddress.ip_address(entry)) for entry in json.loads(text)["host_ip"]}
    except (ValueError, KeyError, TypeError) as failure:
        yield error(
            check, f"HCCL_WHITELIST_FILE={place} has no list of addresses at host_ip ({failure}).", mend
        )
        return
    own = {address for i in machine.interfaces() for address in i.addresses}
    if own & allowed:
        yield ok(check, f"The whitelist {place} names this host and {len(allowed - own)} others.")
    else:
        yield error(check, f"The whitelist {place} names no address of this host.", mend)


def npu_addresses(machine: Machine) -> Iterator[Finding]:
    """Each NPU has an address of its own for traffic between machines."""
    check, numbers = "network.npu_addresses", driver.device_numbers(machine)
    text = machine.read("/etc/hccn.conf")
    if not is_there(machine) or len(numbers) < 2:
        return
    mend = "`hccn_tool -i <npu> -ip -s address <address> netmask <mask>` gives one; one machine needs none."
    if text is None:
        yield ok(
            check, "There is no /etc/hccn.conf: fine for one machine; several need an address for each NPU."
        )
        return
    addresses = {number: value_of(text, f"address_{number}") for number in numbers}
    lacking = [str(number) for number, address in addresses.items() if address is None]
    given = [address for address in addresses.values() if address is not None]
    if lacking:
        yield warning(check, f"/etc/hccn.conf has no address for NPU {', '.join(lacking)}.", mend)
    elif len(set(given)) < len(given):
        yield error(check, "/etc/hccn.conf gives two NPUs one address.", mend)
    else:
        yield ok(check, f"/etc/hccn.conf gives each of {len(given)} NPUs an address.")


def matches(wanted: str, name: str) -> bool:
    """True when HCCL_SOCKET_IFNAME allows an interface: `eth`, `=eth0`, `^eth` or `^=eth0`, with commas."""
    refused = wanted.startswith("^")
    exact = wanted.removeprefix("^").startswith("=")
    entries = [entry for entry in wanted.removeprefix("^").removeprefix("=").split(",") if entry]
    found = any(name == entry if exact else name.startswith(entry) for entry in entries)
    return found != refused


def _preference(found: Interface) -> tuple[int, str]:
    """HCCL's own order: others by name, then docker's, then the loopback."""
    if found.name == "lo":
        return 2, found.name
    return int(found.name.startswith("docker")), found.name


def _by_address(check: str, address: str, known: Sequence[Interface]) -> Finding:
    bare = address.partition("%")[0]  # an IPv6 address may carry %interface
    mend = "export HCCL_IF_IP=<an address of this very host>: each host needs its own."
    try:
        wanted = str(ipaddress.ip_address(bare))
    except ValueError:
        return error(check, f"HCCL_IF_IP={address} is no address.", mend)
    owner = next((i for i in known if wanted in i.addresses), None)
    if owner is None:
        return error(check, f"HCCL_IF_IP={address} is an address of no interface of this host.", mend)
    if not owner.up:
        return error(check, f"HCCL_IF_IP={address} belongs to {owner.name}, which is down.", mend)
    return ok(check, f"HCCL meets on {owner.name} ({address}): HCCL_IF_IP.")


def _master(machine: Machine) -> Iterator[Finding]:
    check, host, port = "network.master", machine.setting("MASTER_ADDR"), machine.setting("MASTER_PORT")
    if port is not None and not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        yield error(
            check, f"MASTER_PORT={port} is no port.", "export MASTER_PORT=29500, or another to 65535."
        )
    if host is None:
        return
    try:
        address = machine.resolve(host)
    except OSError as failure:
        yield error(
            check,
            f"MASTER_ADDR={host} cannot be resolved ({failure}).",
            "export MASTER_ADDR=<name or address of rank 0's host>.",
        )
        return
    world, local = machine.setting("WORLD_SIZE"), machine.setting("LOCAL_WORLD_SIZE")
    several = world and local and world.isdecimal() and local.isdecimal() and int(world) > int(local)
    if several and address.startswith("127."):
        yield error(
            check,
            f"MASTER_ADDR={host} is {address}, the loopback, in a job of {world} ranks with {local} here.",
            "export MASTER_ADDR=<an address of rank 0's host that the other machines reach>.",
        )
    else:
        yield ok(check, f"MASTER_ADDR={host} is {address}.")


def _is_port_range(text: str) -> bool:
    """True for what HCCL takes: `auto`, or ports and ranges with commas between them, none twice."""
    if text == "auto":
        return True
    seen: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not all(end.isascii() and end.isdecimal() for end in (low, high or low)) or (dash and not high):
            return False
        first, last = int(low), int(high or low)
        if not 1 <= first <= last <= 65535 or seen & set(range(first, last + 1)):
            return False
        seen.update(range(first, last + 1))
    return True


def _port_set(text: str) -> set[int]:
    ports: set[int] = set()
    for part in text.strip().split(","):
        low, dash, high = part.partition("-")
        if low.isdecimal() and (not dash or high.isdecimal()):
            ports.update(range(int(low), min(int(high or low), 65535) + 1))
    return ports
