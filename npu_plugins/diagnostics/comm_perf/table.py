"""The table on the terminal, in nccl-tests' columns."""

from __future__ import annotations

from collections.abc import Sequence

from npu_plugins.diagnostics.comm_perf.results import Report, Row, Timing, average_bus_bandwidth

_COLUMNS = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_TIMES = "  {:>7}  {:>6}  {:>6}  {:>6}"


def head(report: Report, sizes: Sequence[int], how: str, devices: Sequence[str]) -> str:
    """Return what stands above all tables."""
    where = f"{report.world_size} ranks over {report.backend} on {report.device}"
    lines = [
        f"# npu-plugins comm-perf: {where}",
        *(["# simulated NPUs: results are real, times are this CPU's"] if report.simulated else []),
        f"# sizes {sizes[0]} to {sizes[-1]} B, {how}",
        "# Using devices",
        *(f"#  Rank {rank:>4}  {device}" for rank, device in enumerate(devices)),
    ]
    return "\n".join(lines) + "\n"


def table_head(row: Row, cpu_time: bool) -> str:
    """Return the heading of a collective's table."""
    groups = "" if row.groups == 1 else f", {row.groups} groups at once, the slowest one told"
    time = "cputime" if cpu_time else "time"
    names = (time, "algbw", "busbw", "#wrong")
    units = ("(us)", "(GB/s)", "(GB/s)", "")
    lines = [
        "#",
        f"# {row.collective}, {row.axis}: {row.ranks} ranks{groups}",
        _COLUMNS.format("", "", "", "", "") + "           out-of-place                       in-place",
        _COLUMNS.format("size", "count", "type", "redop", "root") + _TIMES.format(*names) * 2,
        _COLUMNS.format("(B)", "(elements)", "", "", "") + _TIMES.format(*units) * 2,
    ]
    return "\n".join(line.rstrip() for line in lines)


def line(row: Row) -> str:
    """Return one row."""
    left = f"{row.size:>12}  {row.count:>12}  {row.dtype:>8}  {row.redop:>6}  {row.root:>6}"
    return left + _timing(row.out_of_place) + _timing(row.in_place)


def table_foot(rows: Sequence[Row]) -> str:
    """Return the two lines below a table."""
    wrong = sum(timing.wrong or 0 for row in rows for timing in row.timings)
    checked = any(timing.wrong is not None for row in rows for timing in row.timings)
    verdict = "FAILED" if wrong else "OK" if checked else "not checked"
    return (
        f"# Out of bounds values : {wrong} {verdict}\n"
        f"# Avg bus bandwidth    : {average_bus_bandwidth(rows):g}"
    )


def short(value: float, width: int) -> str:
    """Return a number in `width` characters, with as many of two decimals as there is room for."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.{1 if width >= 7 else 0}e}"


def _timing(timing: Timing | None) -> str:
    if timing is None:
        return _TIMES.format("N/A", "N/A", "N/A", "N/A")
    wrong = "N/A" if timing.wrong is None else f"{timing.wrong:g}"
    return _TIMES.format(short(timing.microseconds, 7), short(timing.algbw, 6), short(timing.busbw, 6), wrong)
