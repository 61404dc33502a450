"""A whole run in ranks that exist: rows along the axes, refusals told once, files, links and buckets."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ds_configs.buckets import bucket_sizes
from ds_configs.measured_links import MeasuredLinks
from ds_configs.parallel import ParallelConfig
from npu_plugins.cli import main
from npu_plugins.comm import ProcessMesh
from npu_plugins.comm.devices import device_for, make_current
from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.comm_perf.collectives import collective_named
from npu_plugins.diagnostics.comm_perf.commands import buckets_text, told_once, write_files
from npu_plugins.diagnostics.comm_perf.job import Line, run
from npu_plugins.diagnostics.comm_perf.links import links_of
from npu_plugins.diagnostics.comm_perf.measure import Repeats
from npu_plugins.diagnostics.comm_perf.request import Request
from npu_plugins.diagnostics.comm_perf.results import Report, Row, Timing, average_bus_bandwidth
from npu_plugins.diagnostics.comm_perf.table import line, short, table_foot, table_head
from tests.harness import World

FEW = Repeats(timed=2, warmup=0, checked=1)


def measured(request: Request, axes: tuple[str, ...] = ()) -> tuple[Report | str, list[str]]:
    """The report of a run along the world or the axes of tp 2, and the lines that were told."""
    told: list[str] = []
    device = device_for(dist.get_backend(), None)
    make_current(device)
    lines = [Line("world", None, [tuple(range(dist.get_world_size()))])]
    mesh = None
    if axes:
        mesh = ProcessMesh.create(ParallelConfig.of_world(dist.get_world_size(), tp=2))
        lines = [Line(axis, mesh.group(axis), mesh.topology.groups(axis)) for axis in axes]
    try:
        return run(request, lines, device, simulated=False, tell=told.append), told
    except DiagnosticsError as error:
        return str(error), told
    finally:
        if mesh is not None:
            mesh.destroy()


@pytest.mark.ranks(4, backend="gloo")
def test_each_axis_has_its_rows_and_rank_0_tells_them(ranks: World) -> None:
    names = ("all_reduce", "all_gather", "sendrecv")
    request = Request([8, 64, 1000], [collective_named(name) for name in names], repeats=FEW)
    found = ranks.run(measured, request, ("tp", "dp"))
    report, told = found[0]
    assert [other for _, other in found[1:]] == [[], [], []]
    assert all(other == report for other, _ in found[1:])
    rows = [(row.axis, row.collective, row.ranks, row.groups, row.size, row.count) for row in report.rows]
    sizes = {"all_reduce": [(8, 2), (64, 16), (1000, 250)], "all_gather": [(64, 8), (992, 124)]}
    sizes["sendrecv"] = sizes["all_reduce"]
    assert rows == [
        (axis, name, 2, 2, *each) for axis in ("tp", "dp") for name in names for each in sizes[name]
    ]
    assert report.wrong == 0
    assert sum("Out of bounds values : 0 OK" in text for text in told) == 6
    assert sum(text.startswith("#\n# all_gather, dp: 2 ranks, 2 groups at once") for text in told) == 1


@pytest.mark.ranks(3, backend="gloo")
def test_what_cannot_be_measured_ends_a_run_or_is_told(ranks: World) -> None:
    cube = Request([64], [collective_named("hypercube")], repeats=FEW)
    why = "hypercube needs a power of two of ranks, not 3; start as many (-g)"
    assert ranks.run(measured, cube)[2][0] == why
    both = replace(cube, collectives=[collective_named("all_reduce"), *cube.collectives], strict=False)
    report, told = ranks.run(measured, both)[0]
    assert report.refused == [why]
    assert [row.collective for row in report.rows] == ["all_reduce"]
    assert told[-1] == f"# not measured: {why}"
    small = Request([8], [collective_named("all_gather")], repeats=FEW)
    assert "No size up to 8 bytes (-e) gives each of 3 ranks 16 bytes" in ranks.run(measured, small)[1][0]
    outside = Request([8], [collective_named("broadcast")], root=3, repeats=FEW)
    assert ranks.run(measured, outside)[0][0] == (
        "Root 3 (-r) is not in a group of 3 ranks; take one from 0 to 2"
    )
    everyone = Request([64], [collective_named("broadcast")], root=None, repeats=FEW)
    assert [row.root for row in ranks.run(measured, everyone)[0][0].rows] == [0, 1, 2]


@pytest.mark.npu
@pytest.mark.ranks(2)
def test_what_hccl_does_not_do_is_told_and_the_rest_measured(ranks: World) -> None:
    request = Request(
        [64],
        [collective_named("all_reduce")],
        ("double", "bfloat16"),
        ("sum", "prod"),
        repeats=FEW,
        strict=False,
    )
    report = ranks.run(measured, request)[0][0]
    assert [(row.dtype, row.redop) for row in report.rows] == [("bfloat16", "sum")]
    assert report.refused == [
        "hccl fails at all_reduce (sum) of double on npu: HCCL allreduce: Unsupported data type at::kDouble",
        "hccl fails at all_reduce (prod) of double on npu: HCCL allreduce: Unsupported data type at::kDouble",
        "hccl does not do all_reduce (prod) of bfloat16",
    ]
    alone = replace(request, dtypes=("bfloat16",), reductions=("prod",), strict=True)
    assert ranks.run(measured, alone)[1][0] == f"{report.refused[-1]}; take another -d, -o or --op"
    assert report.wrong == 0


def ended(kind: type[BaseException]) -> tuple[str, Any]:
    """How a rank ends that has been raised `kind` in."""
    try:
        with told_once():
            raise kind("the same for all")
    except (DiagnosticsError, SystemExit) as error:
        return type(error).__name__, getattr(error, "code", None)


@pytest.mark.ranks(3, backend="gloo")
def test_an_error_of_all_ranks_is_told_once_and_an_interrupt_never(ranks: World) -> None:
    told = ranks.run(ended, DiagnosticsError)
    assert sorted(told, key=str) == [("DiagnosticsError", None), ("SystemExit", 1), ("SystemExit", 1)]
    assert ranks.run(ended, KeyboardInterrupt) == [("SystemExit", 130)] * 3


def launched(port: int, *words: str) -> tuple[int, str]:
    """Exit status and output of the command in a rank whose launcher holds the store, as torchrun's does."""
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", MASTER_PORT=str(port))
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        status = main(["comm-perf", "--backend", "gloo", *words])
    assert not dist.is_initialized()
    return status, told.getvalue()


@pytest.mark.ranks(4, backend=None)
def test_under_a_launcher_the_command_is_one_of_its_ranks(ranks: World, tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    file = tmp_path / "report.json"
    words = "-b 1K -e 4K -f 4 -n 2 --tp 2 --axis tp --op all_gather"
    found = ranks.run(launched, store.port, *words.split(), "--json", str(file))
    assert [status for status, _ in found] == [0, 0, 0, 0]
    assert "# all_gather, tp: 2 ranks, 2 groups at once" in found[0][1]
    assert [text for _, text in found[1:]] == ["", "", ""]
    told = json.loads(file.read_text())
    assert (told["backend"], told["device"], told["simulated"]) == ("gloo", "cpu", False)
    assert [(row["axis"], row["size"], row["in_place"]["wrong"]) for row in told["rows"]] == [
        ("tp", 1024, 0),
        ("tp", 4096, 0),
    ]
    assert ranks.run(launched, store.port, "-g", "2") == [(1, "")] * 4  # a launcher has started ranks already


def row(collective: str, size: int, microseconds: float, **more: Any) -> Row:
    """A row of an all-reduce-like collective over two ranks."""
    timing = Timing(microseconds, size / microseconds / 1e3, size / microseconds / 1e3, 0)
    given = {"axis": "dp", "ranks": 2, "groups": 1, "dtype": "float", "redop": "sum", "root": -1}
    return Row(collective, size=size, count=size // 4, out_of_place=timing, in_place=timing, **given | more)


def report_of(*rows: Row, **more: Any) -> Report:
    """A report of rows that were not measured."""
    return Report("hccl", "npu (Ascend910B3)", True, 2, 20, {"torch": "2.13"}, list(rows), **more)


def test_the_table_has_the_columns_of_nccl_tests() -> None:
    wrong = Timing(1234567.0, 0.0123, 12345.6, 3)
    rows = [row("all_reduce", 8, 31.5), replace(row("all_to_all", 2**26, 1e4), in_place=None)]
    rows.append(replace(rows[0], out_of_place=wrong, in_place=replace(wrong, wrong=None)))
    text = "\n".join([table_head(rows[0], cpu_time=False), *map(line, rows), table_foot(rows)])
    titles, row_of_nccl = "out-of-place", "time   algbw   busbw  #wrong"
    assert text.splitlines() == [  # trailing blanks of headings are cut
        "#",
        "# all_reduce, dp: 2 ranks",
        "#" + " " * 62 + titles + " " * 23 + "in-place",
        "#       size         count      type   redop    root     " + f"{row_of_nccl}     {row_of_nccl}",
        "#        (B)    (elements)                               "
        + ("(us)  (GB/s)  (GB/s)             " * 2).rstrip(),
        "           8             2     float     sum      -1" + "    31.50    0.00    0.00       0" * 2,
        "    67108864      16777216     float     sum      -1  10000.0    6.71    6.71       0"
        "      N/A     N/A     N/A     N/A",
        "           8             2     float     sum      -1"
        "  1234567    0.01   12346       3  1234567    0.01   12346     N/A",
        "# Out of bounds values : 3 FAILED",
        "# Avg bus bandwidth    : 4939.58",
    ]
    assert average_bus_bandwidth([]) == 0.0


def test_numbers_keep_the_width_of_their_column() -> None:
    assert [short(value, 6) for value in (0.0, 3.14159, 999.996, 123456.7, 1e9)] == [
        "0.00",
        "3.14",
        "1000.0"[:7],
        "123457",
        "1e+09",
    ]
    assert short(1e9, 7) == "1.0e+09"


def test_files_hold_every_row(tmp_path: Path) -> None:
    report = report_of(row("all_reduce", 8, 30.0), replace(row("all_to_all", 64, 40.0), in_place=None))
    files = argparse.Namespace(
        output_file=tmp_path / "r.json", csv=tmp_path / "r.csv", plot=tmp_path / "r.png", links=None
    )
    write_files(report, files)
    told = json.loads(files.output_file.read_text())
    assert (told["simulated"], told["backend"], len(told["rows"])) == (True, "hccl", 2)
    lines = list(csv.DictReader(io.StringIO(files.csv.read_text())))
    assert [each["collective"] for each in lines] == ["all_reduce", "all_to_all"]
    assert (lines[0]["in_place_microseconds"], lines[1]["in_place_microseconds"]) == ("30.0", "")
    assert files.plot.read_bytes().startswith(b"\x89PNG")
    for name in ("plot", "csv"):
        nowhere = argparse.Namespace(**vars(files) | {name: tmp_path / "no" / "where.bad"})
        with pytest.raises(DiagnosticsError, match="where.bad cannot be written"):
            write_files(report, nowhere)


def test_links_are_fitted_to_each_axis_and_decide_buckets() -> None:
    rows = [
        row(name, size, 1e6 * (1e-4 + size / 1e10), axis=axis)
        for axis in ("tp", "dp")
        for name in ("all_reduce", "all_gather", "reduce_scatter")
        for size in (8, 2**10, 2**20, 2**26)
    ]
    report = report_of(*rows)
    links = links_of(report)
    assert (links.simulated, list(links.axes)) == (True, ["tp", "dp"])
    speed = links.speed("all_gather", "dp")
    assert (speed.latency, speed.bandwidth) == (pytest.approx(1e-4), pytest.approx(1e10))
    asked = argparse.Namespace(buckets="7B", tp=2, pp=1, zero_stage=3)
    heading, _, fragment = buckets_text(report, asked).partition("\n")
    assert heading == (
        "# buckets for ZeRO-3 and 3500000000 parameters of float on each rank, at the speed of simulated NPUs"
    )
    sizes = bucket_sizes(links, stage=3, parameters=3_500_000_000, element_bytes=4)
    assert json.loads(fragment) == {"zero_optimization": {"stage": 3, **sizes}}
    assert isinstance(links, MeasuredLinks)
    with pytest.raises(DiagnosticsError, match="all_reduce along dp: .* messages of two sizes or more"):
        links_of(report_of(row("all_reduce", 8, 30.0)))
