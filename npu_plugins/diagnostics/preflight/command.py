"""What `npu-plugins preflight` does, on a launched rank and by itself."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from ds_configs.errors import DsConfigError
from ds_configs.parallel import ParallelConfig
from ds_configs.sizes import parse_bytes
from npu_plugins.autoload import platform
from npu_plugins.comm import ProcessMesh
from npu_plugins.comm.devices import device_for
from npu_plugins.comm.timeouts import setting
from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.local_ranks import devices_here, npu_plugins_command, run_local_ranks
from npu_plugins.diagnostics.preflight.board import StoreLostError, open_store
from npu_plugins.diagnostics.preflight.compare import Fact, facts_of
from npu_plugins.diagnostics.preflight.facts import device_facts, environment_facts, version_facts
from npu_plugins.diagnostics.preflight.report import PreflightError, Report
from npu_plugins.diagnostics.preflight.run import Preflight, Settings
from npu_plugins.launchers import is_rank

LEAST_BYTES = 1024
BEHIND = 1.0
"""Seconds; launchers look after their ranks ten times a second or so."""


def preflight_command(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Run the command; return its exit status.

    Raises:
        DiagnosticsError: an option is refused.
    """
    settings = settings_of(options, environ)
    backend = backend_of(options.device)
    if not is_rank(environ):
        ranks = visible_devices(options.device) if options.ranks is None else options.ranks
        refuse_without_devices(ranks, backend)
        config_of(options, ranks)  # refused here in one sentence, and not by each rank
        return run_local_ranks(npu_plugins_command(*options.command_line), ranks)
    world_size = int(environ.get("WORLD_SIZE") or 1)
    if options.ranks not in (None, world_size):
        raise DiagnosticsError(
            f"-g is {options.ranks}, but a launcher has started {world_size} ranks; leave it out"
        )
    return as_rank(options, settings, config_of(options, world_size), backend, environ)


def as_rank(
    options: argparse.Namespace,
    settings: Settings,
    config: ParallelConfig,
    backend: str,
    environ: Mapping[str, str],
) -> int:
    """Be one rank of the preflight; return the exit status.

    Does not return where a communication hangs: the process ends with status 1.
    """
    try:
        store = open_store(environ, settings.limit)
    except StoreLostError as error:
        print(f"preflight: {error}", file=sys.stderr)
        return 1
    rank = int(environ["RANK"])
    flight = Preflight(
        store.clone(), rank, config, settings, tell=teller(options.json), platform=told(backend)
    )
    try:
        flight.meet()
        device = flight.do("devices", functools.partial(device_for, backend, None))
        facts = [*version_facts(), *environment_facts(environ), *device_facts(device, flight.here, environ)]
        for file in options.config:
            facts += file_facts(file)
        flight.compare("settings", facts)
        flight.communicate(connector(store, rank, config, backend), not options.no_links)
        flight.compare_clocks()
        flight.finish()
    except PreflightError as error:
        if error.stuck:
            sys.stdout.flush()
            sys.stderr.flush()
            _let_rank_0_end_first(rank)
            os._exit(1)  # whatever tears down the groups would wait for what hangs
        status = 1
    else:
        status = 0
    if dist.is_initialized():
        dist.destroy_process_group()
    if status:
        _let_rank_0_end_first(rank)
    return status


def _let_rank_0_end_first(rank: int) -> None:
    """Launchers call the first rank that ends the cause: let it be the one that has told the report."""
    if rank:
        time.sleep(BEHIND)


def connector(
    store: dist.Store, rank: int, config: ParallelConfig, backend: str
) -> Callable[[], ProcessMesh]:
    """Return what makes the default process group, over the store at hand, and the mesh."""

    def connect() -> ProcessMesh:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("npu_plugins.preflight.default_group", store),
            rank=rank,
            world_size=config.world_size,
        )
        return ProcessMesh.create(config)

    return connect


def settings_of(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Return the settings that the options and HCCL_TIMEOUT ask for.

    Raises:
        DiagnosticsError: a value is refused.
    """
    limit = options.timeout or float(setting(environ) or Settings.limit)
    for name, value, least in (
        ("--timeout", limit, 0.0),
        ("--slow-factor", options.slow_factor, 1.0),
        ("--max-skew", options.max_skew, 0.0),
    ):
        if not value > least:
            raise DiagnosticsError(f"{name} is {value:g}; give a number above {least:g}")
    if options.min_bandwidth < 0:
        raise DiagnosticsError(f"--min-bandwidth is {options.min_bandwidth:g}; give GB/s, or 0 for none")
    try:
        size = parse_bytes(options.bytes, least=LEAST_BYTES)
    except DsConfigError as error:
        raise DiagnosticsError(f"--bytes: {error}") from error
    return Settings(
        limit=limit,
        size=size,
        slow_factor=options.slow_factor,
        least_gbps=options.min_bandwidth,
        most_skew=options.max_skew,
        strict=options.strict,
    )


def config_of(options: argparse.Namespace, world_size: int) -> ParallelConfig:
    """Return the degrees for so many ranks.

    Raises:
        DiagnosticsError: they do not divide them.
    """
    try:
        return ParallelConfig.of_world(world_size, options.tp, options.pp, options.ep)
    except DsConfigError as error:
        raise DiagnosticsError(str(error)) from error


def backend_of(kind: str | None) -> str:
    """Return the backend of a kind of device; by default of the accelerator that torch has here.

    Raises:
        DiagnosticsError: there is no accelerator, or no backend for it.
    """
    if kind is None:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None:
            raise DiagnosticsError(
                "torch sees no accelerator here (`npu-plugins doctor` says why); set NPU_SIM=<number> to "
                "simulate NPUs, or give --device cpu"
            )
        kind = accelerator.type
    backend = dist.Backend.default_device_backend_map.get(kind)
    if backend is None:
        known = ", ".join(dist.Backend.default_device_backend_map)
        raise DiagnosticsError(
            f"--device {kind}: torch.distributed has backends for {known}; give one of them"
        )
    return backend


def visible_devices(kind: str | None) -> int:
    """Return how many ranks this machine has devices for.

    Raises:
        DiagnosticsError: it is the CPU, of which there is one.
    """
    if kind == "cpu":
        raise DiagnosticsError("--device cpu says nothing of how many ranks to start; give -g, as in -g 2")
    return torch.accelerator.device_count()


def refuse_without_devices(ranks: int, backend: str) -> None:
    """Let each rank have a device of its own.

    Raises:
        DiagnosticsError: there are fewer devices here than ranks.
    """
    here = devices_here(backend)
    if here is not None and ranks > here:
        raise DiagnosticsError(
            f"{ranks} ranks (-g) over {backend} need as many devices, but {here} are here; start fewer, or "
            "use --device cpu"
        )


def teller(as_json: bool) -> Callable[[Report], None]:
    """Return what prints the report on stdout."""

    def tell(report: Report) -> None:
        print(report.to_json(indent=2) if as_json else report.text(), flush=True)

    return tell


def told(backend: str) -> str:
    """Return what ranks communicate over, in words; simulated NPUs are said to be."""
    return f"{backend} (simulated NPUs)" if backend == "hccl" and platform() != "npu" else backend


def file_facts(file: Path) -> list[Fact]:
    """Return the leaves of a JSON file as facts; of any other file the digest of its bytes.

    A file that cannot be read is a fact as well: the other ranks may have it.
    """
    mend = f"copy the same {file.name} to all hosts, or put it where all see it"
    try:
        content = file.read_bytes()
    except OSError as error:
        return [Fact(file.name, "the file", f"not readable ({error.strerror})", mend=mend)]
    found = [Fact(file.name, "the file", "readable", mend=mend)]
    try:
        return found + facts_of(file.name, json.loads(content), mend)
    except ValueError:
        digest = hashlib.sha256(content).hexdigest()[:12]
        return [*found, Fact(file.name, "its SHA-256", digest, mend=mend)]
