"""What `npu-plugins comm-perf` does, beside its arguments: starting ranks, and being one."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from ds_configs.buckets import bucket_sizes
from ds_configs.errors import DsConfigError
from ds_configs.parallel import ParallelConfig
from npu_plugins.autoload import platform
from npu_plugins.comm.devices import device_for, make_current
from npu_plugins.comm.mesh import ProcessMesh
from npu_plugins.diagnostics.comm_perf.collectives import Collective
from npu_plugins.diagnostics.comm_perf.job import Line, run
from npu_plugins.diagnostics.comm_perf.links import links_of
from npu_plugins.diagnostics.comm_perf.measure import Repeats
from npu_plugins.diagnostics.comm_perf.request import (
    DTYPES,
    Request,
    collectives_named,
    dtypes_named,
    reductions_named,
)
from npu_plugins.diagnostics.comm_perf.results import Report
from npu_plugins.diagnostics.comm_perf.sizes import bytes_of, parameters_of, sizes_between
from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.local_ranks import (
    devices_here,
    npu_plugins_command,
    run_local_ranks,
    usual_backend,
)
from npu_plugins.launchers import is_rank

AXES = ("tp", "dp", "pp")
_LONGEST_WAIT = 366 * 24 * 3600.0  # seconds; timedelta holds no endless one
_INTERRUPTED = 130  # as shells have it: 128 + SIGINT


def comm_perf(options: argparse.Namespace) -> int:
    """Start ranks and return their status, or be one of those that are started already."""
    request = request_of(options)
    backend = options.backend or usual_backend()
    if is_rank():
        return _as_rank(options, request, backend)
    here = devices_here(backend)
    ranks = (here or 2) if options.ngpus is None else options.ngpus
    if here is not None and ranks > here:
        raise DiagnosticsError(
            f"{ranks} ranks (-g) over {backend} need as many devices, but {here} are here; start fewer, or "
            "use --backend gloo on the CPU"
        )
    _lines_of(options, ranks)  # refused before anything starts
    _refuse_files(options)
    return run_local_ranks(npu_plugins_command(*options.command_line), ranks)


def request_of(options: argparse.Namespace) -> Request:
    """Return what the arguments ask for.

    Raises:
        DiagnosticsError: they contradict each other, or a value is none.
    """
    for flag, least in (("iters", 1), ("warmup_iters", 0), ("check", 0)):
        if getattr(options, flag) < least:
            raise DiagnosticsError(f"--{flag} {getattr(options, flag)} is less than {least}; give more")
    if options.timeout is not None and not 0 < options.timeout <= _LONGEST_WAIT:
        raise DiagnosticsError(
            f"A wait of {options.timeout} seconds (-T) is none; give a time above 0, up to a year"
        )
    if options.root != "all" and not options.root.isdecimal():
        raise DiagnosticsError(f"Root {options.root!r} (-r) is no rank; give its number in the group, or all")
    several = [f"-{flag[0]} all" for flag in ("datatype", "root") if getattr(options, flag) == "all"]
    several += ["-o all"] if options.redop == "all" else []
    if several and (options.links is not None or options.buckets is not None):
        raise DiagnosticsError(
            f"--links and --buckets are of one dtype, reduction and root, but {several[0]} is given; name one"
        )
    sizes = sizes_between(
        bytes_of(options.minbytes),
        bytes_of(options.maxbytes),
        step=None if options.stepbytes is None else bytes_of(options.stepbytes),
        factor=options.stepfactor,
    )
    return Request(
        sizes=sizes,
        collectives=_collectives(options),
        dtypes=dtypes_named(options.datatype or ("bfloat16" if options.buckets else "float")),
        reductions=reductions_named(options.redop),
        root=None if options.root == "all" else int(options.root),
        repeats=Repeats(options.iters, options.warmup_iters, options.check, bool(options.report_cputime)),
        average=options.average,
        strict="all" not in (options.op, options.datatype, options.redop),
    )


def write_files(report: Report, options: argparse.Namespace) -> None:
    """Write what the arguments ask for.

    Raises:
        DiagnosticsError: a file cannot be written.
    """
    for file, write in (
        (options.output_file, lambda path: path.write_text(report.to_json(), encoding="utf-8")),
        (options.csv, lambda path: path.write_text(report.to_csv(), encoding="utf-8")),
        (options.plot, lambda path: _draw(report, path)),
        (options.links, lambda path: path.write_text(links_of(report).to_json(), encoding="utf-8")),
    ):
        if file is None:
            continue
        try:
            write(file)
        except (OSError, ValueError) as error:  # matplotlib tells an unknown ending by a ValueError
            raise DiagnosticsError(f"{file} cannot be written ({error}); give another file") from error


def buckets_text(report: Report, options: argparse.Namespace) -> str:
    """Return a part of a ds_config for the model that the arguments name, and a line that says for what.

    Raises:
        DiagnosticsError: the model's size is none, or too little was measured.
    """
    whole, dtype = parameters_of(options.buckets), report.rows[0].dtype
    own = whole // (options.tp * options.pp)
    try:
        sizes = bucket_sizes(
            links_of(report), stage=options.zero_stage, parameters=own, element_bytes=DTYPES[dtype].itemsize
        )
    except DsConfigError as error:
        raise DiagnosticsError(str(error)) from error
    speeds = ", at the speed of simulated NPUs" if report.simulated else ""
    return (
        f"# buckets for ZeRO-{options.zero_stage} and {own} parameters of {dtype} on each rank{speeds}\n"
        + json.dumps({"zero_optimization": {"stage": options.zero_stage, **sizes}}, indent=1)
    )


def _refuse_files(options: argparse.Namespace) -> None:
    """Refuse files that could not be written at the end of the run, when all would have been in vain.

    Raises:
        DiagnosticsError: a file's folder does not exist or may not be written into, or a file is a folder.
    """
    for file in (options.output_file, options.csv, options.plot, options.links):
        if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
            raise DiagnosticsError(
                f"{file} cannot be written: {file.parent} must be a folder that may be written into, and "
                f"{file.name or file} no folder; give another file"
            )
    if options.plot is not None and options.plot.suffix not in (".png", ".svg", ".pdf"):
        raise DiagnosticsError(
            f"A plot {options.plot} cannot be drawn; let its name end in .png, .svg or .pdf"
        )


def _collectives(options: argparse.Namespace) -> list[Collective]:
    """Return those asked for; bucket sizes need three."""
    needed = ("all_reduce", "all_gather", "reduce_scatter")
    wanted = collectives_named(options.op or ("all_reduce" if options.buckets is None else ",".join(needed)))
    missing = [name for name in needed if name not in {each.name for each in wanted}]
    if options.buckets is not None and missing:
        raise DiagnosticsError(
            f"--buckets needs {', '.join(needed)}, but --op {options.op} leaves out "
            f"{', '.join(missing)}; add it"
        )
    return wanted


def _draw(report: Report, file: Path) -> None:
    from npu_plugins.diagnostics.comm_perf.plot import draw

    draw(report, file)


def _as_rank(options: argparse.Namespace, request: Request, backend: str) -> int:
    if options.ngpus not in (None, 1) and options.ngpus != int(os.environ.get("LOCAL_WORLD_SIZE", 1)):
        raise DiagnosticsError(
            f"-g {options.ngpus} asks for ranks, but a launcher has started "
            f"{os.environ.get('LOCAL_WORLD_SIZE', 1)} here; leave -g out"
        )
    timeout = None if options.timeout is None else timedelta(seconds=options.timeout)
    device = device_for(backend, None)
    make_current(device)
    with _default_group(backend, timeout), told_once():
        simulated = device.type == "npu" and platform() == "simulated_npu"
        report = run(request, _groups(options), device, simulated=simulated, tell=_tell)
        if dist.get_rank() == 0:
            write_files(report, options)
            if options.buckets is not None:
                _tell(buckets_text(report, options))
    return 1 if report.wrong else 0


@contextmanager
def _default_group(backend: str, timeout: timedelta | None) -> Iterator[None]:
    try:
        dist.init_process_group(backend, timeout=timeout)
    except RuntimeError as error:  # such as mpi, where torch is built without it
        raise DiagnosticsError(f"No ranks meet over {backend} ({error}); take another --backend") from error
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def told_once() -> Iterator[None]:
    """Let the first rank that ends with an error tell it, and others with the same one say nothing."""
    store = dist.PrefixStore("npu_plugins.comm_perf", dist.distributed_c10d._get_default_store())
    try:
        yield
    except DiagnosticsError as error:
        if store.add(str(error), 1) > 1:
            raise SystemExit(1) from error
        raise
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


def _groups(options: argparse.Namespace) -> list[Line]:
    """Return the groups to measure in; every rank makes all of them."""
    axes = _lines_of(options, dist.get_world_size())
    if not axes:
        return [Line("world", None, [tuple(range(dist.get_world_size()))])]
    mesh = ProcessMesh.create(ParallelConfig.of_world(dist.get_world_size(), tp=options.tp, pp=options.pp))
    return [Line(axis, mesh.group(axis), mesh.topology.groups(axis)) for axis in axes]


def _lines_of(options: argparse.Namespace, ranks: int) -> list[str]:
    """Return the axes to measure along; none where there is no mesh: the world.

    Raises:
        DiagnosticsError: the ranks make no such mesh, or it has no such axis.
    """
    if options.tp == options.pp == 1 and options.axis is None:
        return []
    try:
        config = ParallelConfig.of_world(ranks, tp=options.tp, pp=options.pp)
    except DsConfigError as error:
        raise DiagnosticsError(str(error)) from error
    longer = [axis for axis in AXES if getattr(config, axis) > 1]
    wanted = longer if options.axis is None else options.axis.split(",")
    for axis in wanted:
        if axis not in longer:
            raise DiagnosticsError(
                f"--axis {axis} has nothing to measure: the mesh of {ranks} ranks is tp {config.tp} × dp "
                f"{config.dp} × pp {config.pp}; give --tp, --pp, or an axis that is longer than 1"
            )
    return wanted


def _tell(text: str) -> None:
    print(text, flush=True)
