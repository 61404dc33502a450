"""A rank's part of a run: every rank measures alike, and rank 0 tells it."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from npu_plugins.comm.collectives.dtypes import REDUCED
from npu_plugins.diagnostics.comm_perf import table
from npu_plugins.diagnostics.comm_perf.collectives import REDUCE_OPS, Call, Collective
from npu_plugins.diagnostics.comm_perf.measure import Seen, measure
from npu_plugins.diagnostics.comm_perf.request import AVERAGES, DTYPES, Request
from npu_plugins.diagnostics.comm_perf.results import Report, Row, Timing
from npu_plugins.diagnostics.errors import DiagnosticsError


@dataclass(frozen=True)
class Line:
    """Groups that communicate at once; every rank is in one of them."""

    axis: str
    group: dist.ProcessGroup | None
    """This rank's."""
    groups: Sequence[tuple[int, ...]]
    """Global ranks of all of them."""

    def own(self, rank: int) -> tuple[int, ...]:
        """Return the group of global rank `rank`."""
        return next(group for group in self.groups if rank in group)


@dataclass(frozen=True)
class Case:
    """One collective with one dtype, reduction and root."""

    collective: Collective
    dtype: str
    reduction: str
    root: int

    def words(self) -> str:
        """Return it in words."""
        reduction = f" ({self.reduction})" if self.collective.reduces else ""
        return f"{self.collective.name}{reduction} of {self.dtype}"


def run(
    request: Request,
    lines: Sequence[Line],
    device: torch.device,
    *,
    simulated: bool,
    tell: Callable[[str], None],
) -> Report:
    """Measure everything along every line; all ranks of the default process group call this alike.

    Args:
        request: what to measure.
        lines: along which; the groups of one have one size.
        device: of this rank.
        simulated: whether the device is; it is only told.
        tell: takes the table line by line, on rank 0.

    Raises:
        DiagnosticsError: the backend does not do what is asked for, a root is outside the group, or no size
            is large enough.
    """
    rank, backend = dist.get_rank(), dist.get_backend()
    report = Report(
        backend=backend,
        device=_device_words(device),
        simulated=simulated,
        world_size=dist.get_world_size(),
        iterations=request.repeats.timed,
        versions=_versions(),
    )
    say = tell if rank == 0 else _nothing
    say(table.head(report, request.sizes, _how(request), _all_devices(device)).rstrip())
    for line in lines:
        for collective in request.collectives:
            rows = _one_table(request, line, collective, device, report.refused, say)
            report.rows.extend(rows)
    for sentence in report.refused:
        say(f"# not measured: {sentence}")
    return report


def _one_table(
    request: Request,
    line: Line,
    collective: Collective,
    device: torch.device,
    refused: list[str],
    say: Callable[[str], None],
) -> list[Row]:
    ranks = len(line.groups[0])
    why = _why_not(collective, ranks)
    if why:
        if request.strict:
            raise DiagnosticsError(why)
        refused.append(why)
        return []
    rows: list[Row] = []
    for case in _cases(request, collective, ranks):
        before = len(rows)
        try:
            _refuse_what_ends_the_process(case)
            for row in _rows(request, line, case, device):
                if not rows:
                    say(table.table_head(row, request.repeats.cpu_time))
                say(table.line(row))
                rows.append(row)
        except _RefusedError as error:
            if request.strict or len(rows) > before:  # once it has worked, it is not refused but broken
                raise DiagnosticsError(f"{error}; take another -d, -o or --op") from error
            refused.append(str(error))
            _go_on(line, device, str(error))
    if rows:
        say(table.table_foot(rows))
    return rows


class _RefusedError(Exception):
    """The backend does not do this case."""


def _refuse_what_ends_the_process(case: Case) -> None:
    """Keep from HCCL what it would refuse from the device's stream, where no error can be caught."""
    able = REDUCED["hccl"].get(DTYPES[case.dtype])
    if dist.get_backend() != "hccl" or not case.collective.reduces or able is None:
        return
    if REDUCE_OPS[case.reduction] not in able:
        raise _RefusedError(f"hccl does not do {case.words()}")


def _reason(error: Exception) -> str:
    """Return the line of an error's text that says what is wrong; torch_npu puts advice before it."""
    advice = ("The Inner error", "Since the operator", "Note: ASCEND_LAUNCH_BLOCKING", "[ERROR]")
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line and not line.startswith(advice)]
    return (telling[0] if telling else type(error).__name__).rstrip(".")


def _go_on(line: Line, device: torch.device, why: str) -> None:
    """Refuse to go on after a failure that the backend does not survive: CANN's are found late, and final."""
    try:
        token = torch.zeros(1, dtype=torch.int32, device=device)
        dist.all_reduce(token, group=line.group)
        token.item()
    except RuntimeError as error:
        raise DiagnosticsError(f"{why}; nothing can be measured after it: leave it out") from error


def _cases(request: Request, collective: Collective, ranks: int) -> list[Case]:
    if request.root is not None and not 0 <= request.root < ranks:
        raise DiagnosticsError(
            f"Root {request.root} (-r) is not in a group of {ranks} ranks; take one from 0 to {ranks - 1}"
        )
    roots = (range(ranks) if request.root is None else (request.root,)) if collective.rooted else (0,)
    reductions = request.reductions if collective.reduces else ("sum",)
    return [
        Case(collective, dtype, reduction, root)
        for dtype in request.dtypes
        for reduction in reductions
        for root in roots
    ]


def _why_not(collective: Collective, ranks: int) -> str | None:
    if ranks < collective.least_ranks:
        return f"{collective.name} needs {collective.least_ranks} ranks, not {ranks}; start more (-g)"
    if collective.name == "hypercube" and ranks & (ranks - 1):
        return f"hypercube needs a power of two of ranks, not {ranks}; start as many (-g)"
    return None


def _rows(request: Request, line: Line, case: Case, device: torch.device) -> Iterator[Row]:
    """Yield a row for each size that is large enough; sizes that are rounded to the same one are one."""
    dtype, ranks = DTYPES[case.dtype], len(line.groups[0])
    counts = dict.fromkeys(case.collective.count(size, dtype, ranks) for size in request.sizes)
    counts.pop(0, None)
    if not counts:
        raise DiagnosticsError(
            f"No size up to {request.sizes[-1]} bytes (-e) gives each of {ranks} ranks 16 bytes in "
            f"{case.collective.name}, or one element; give a larger one"
        )
    for count in counts:
        out_of_place = _timing(request, line, case, device, count, in_place=False)
        in_place = None
        if case.collective.in_place:
            in_place = _timing(request, line, case, device, count, in_place=True)
        yield Row(
            collective=case.collective.name,
            axis=line.axis,
            ranks=ranks,
            groups=len(line.groups),
            size=case.collective.size(count, dtype, ranks),
            count=count,
            dtype=case.dtype,
            redop=case.reduction if case.collective.reduces else "none",
            root=case.root if case.collective.rooted else -1,
            out_of_place=out_of_place,
            in_place=in_place,
        )


def _timing(
    request: Request, line: Line, case: Case, device: torch.device, count: int, in_place: bool
) -> Timing:
    dtype, rank = DTYPES[case.dtype], dist.get_rank()
    members = line.own(rank)
    place = members.index(rank)
    send, receive = case.collective.buffers(count, dtype, len(members), place, device, in_place)
    call = Call(send, receive, line.group, members, place, case.root, case.reduction)
    try:
        seen = measure(case.collective, call, count, request.repeats)
    except (RuntimeError, ValueError) as error:
        what = f"{case.words()} on {device.type}"
        raise _RefusedError(f"{dist.get_backend()} fails at {what}: {_reason(error)}") from error
    everyone = _from_all_ranks(seen, device)
    seconds = max(_of_group([everyone[rank] for rank in group], request.average) for group in line.groups)
    size = case.collective.size(count, dtype, len(members))
    algbw, busbw = case.collective.bandwidths(size, seconds, len(members))
    wrong = sum(each.wrong for each in everyone) if request.repeats.checked else None
    return Timing(seconds * 1e6, algbw, busbw, wrong)


def _of_group(seen: Sequence[Seen], average: int) -> float:
    seconds = [each.seconds for each in seen]
    return (seconds[0], sum(seconds) / len(seconds), min(seconds), max(seconds))[average]


def _from_all_ranks(seen: Seen, device: torch.device) -> list[Seen]:
    """Return what every rank of the world saw; as int64, as HCCL moves no float64."""
    own = torch.tensor([[max(1, round(seen.seconds * 1e9)), seen.wrong]], dtype=torch.int64, device=device)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return [Seen(nanoseconds / 1e9, wrong) for ((nanoseconds, wrong),) in (part.tolist() for part in parts)]


def _all_devices(device: torch.device) -> list[str]:
    told: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(told, f"Pid {os.getpid():>7} on {socket.gethostname()} device {device}")
    return told


def _device_words(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    return f"{device.type} ({getattr(torch, device.type).get_device_name(device)})"


def _how(request: Request) -> str:
    repeats = request.repeats
    return (
        f"iters: {repeats.timed}, warmup iters: {repeats.warmup}, validation: {repeats.checked}, "
        f"time: {AVERAGES[request.average]}"
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in ("torch", "torch_npu"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _nothing(text: str) -> None:
    """What ranks but the first tell."""
