"""Latency and bandwidth of each axis, out of what was measured along it."""

from __future__ import annotations

from ds_configs.measured_links import AxisLinks, MeasuredLinks
from npu_plugins.comm.errors import CommError
from npu_plugins.comm.links import fit
from npu_plugins.diagnostics.comm_perf.results import Report
from npu_plugins.diagnostics.errors import DiagnosticsError


def links_of(report: Report) -> MeasuredLinks:
    """Fit every collective along every axis; the calls in place count, where torch copies nothing.

    Raises:
        DiagnosticsError: there are too few sizes, or their times tell no bandwidth.
    """
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in report.rows:
        timing = row.in_place or row.out_of_place
        points.setdefault((row.axis, row.collective), []).append((row.size, timing.microseconds / 1e6))
    ranks = {row.axis: row.ranks for row in report.rows}
    axes = {}
    for axis, size in ranks.items():
        speeds = {}
        for (along, collective), measured in points.items():
            if along == axis:
                try:
                    speeds[collective] = fit(measured)
                except CommError as error:
                    raise DiagnosticsError(f"{collective} along {axis}: {error}") from error
        axes[axis] = AxisLinks(size, speeds)
    return MeasuredLinks(axes, report.backend, report.device, report.simulated, "this measurement")
