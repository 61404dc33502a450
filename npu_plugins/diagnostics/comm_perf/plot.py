"""Time and bus bandwidth over the size of a message, as a picture."""

from __future__ import annotations

from pathlib import Path

from npu_plugins.diagnostics.comm_perf.results import Report, Row


def draw(report: Report, file: Path) -> None:
    """Write a picture of all tables to `file`; its ending says the format, such as .png or .svg."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    time, speed = figure.subplots(1, 2)
    for label, rows in _curves(report.rows).items():
        told = [(row.size, row.in_place or row.out_of_place) for row in rows]
        sizes = [size for size, _ in told]
        time.plot(sizes, [timing.microseconds for _, timing in told], marker=".", label=label)
        if rows[0].ranks > 1:
            speed.plot(sizes, [timing.busbw for _, timing in told], marker=".", label=label)
    time.set_ylabel("microseconds")
    time.set_title("Time of a call")
    speed.set_ylabel("GB/s")
    speed.set_title("Bus bandwidth")
    for axes in (time, speed):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("bytes")
        axes.xaxis.set_major_formatter(lambda value, _: _in_words(value))
        axes.grid(True, which="major", alpha=0.3)
    figure.legend(*time.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    where = f"{report.world_size} ranks over {report.backend} on {report.device}"
    figure.suptitle(where + (": simulated, times are a CPU's" if report.simulated else ""))
    figure.savefig(file, dpi=120)


def _curves(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the rows of each curve by its label, which says what not all rows have in common."""
    parts = [(row.collective, row.axis, row.dtype, row.redop, f"root {row.root}") for row in rows]
    nothing = ("none", "root -1")
    differ = [0, *(place for place in range(1, 5) if len({part[place] for part in parts} - {*nothing}) > 1)]
    found: dict[str, list[Row]] = {}
    for row, part in zip(rows, parts, strict=True):
        words = [part[place] for place in differ if part[place] not in nothing]
        found.setdefault(", ".join(words), []).append(row)
    return found


def _in_words(size: float) -> str:
    """Return a size as -b and -e take it."""
    for unit, word in ((2**30, "G"), (2**20, "M"), (2**10, "K")):
        if size >= unit:
            return f"{size / unit:g}{word}"
    return f"{size:g}"
