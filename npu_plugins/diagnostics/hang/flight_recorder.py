"""Dumps that torch's own flight recorders wrote, of NCCL and of torch_npu, read as dumps of ranks.

They are pickles of plain containers (TORCH_FR_DUMP_TEMP_FILE and TORCH_HCCL_DEBUG_INFO_TEMP_FILE name
them); what asks for anything else is not unpickled. Read as torch and torch_npu 2.13 write them. They know
no place of the program but those of the calls, and no errors.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn

from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.hang.dump import STATES, Call, Frame, Group, RankDump
from npu_plugins.diagnostics.hang.recorder import C10D

_NAME = re.compile(r".*?(\d+)")


class _PlainUnpickler(pickle.Unpickler):
    """Takes dicts, lists and scalars; a file that names a class or function may do harm and is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def find_flight_dumps(directory: Path) -> dict[int, Path]:
    """Return the flight recorders' files in a folder by rank; empty if there are none.

    Their names end with the rank and have no suffix: `nccl_trace_rank_3`.
    """
    if not directory.is_dir():
        return {}
    found = {}
    for path in directory.iterdir():
        name = _NAME.fullmatch(path.name)
        if name and path.is_file() and _is_pickle(path):
            found[int(name[1])] = path
    return dict(sorted(found.items()))


def load_flight_dumps(paths: Mapping[int, Path]) -> dict[int, RankDump]:
    """Read flight recorders' files, by rank. The time of a dump is that of its file.

    Raises:
        DiagnosticsError: a file is cut off, asks for classes, or is no flight recorder's.
    """
    dumps = {}
    for rank, path in paths.items():
        with path.open("rb") as stream:
            dumps[rank] = _dump(rank, path, _contents(path, stream), len(paths))
    world_size = max(dump.world_size for dump in dumps.values())
    return {rank: _of_size(dump, world_size) for rank, dump in dumps.items()}


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(1) == b"\x80"


def _contents(path: Path, stream: IO[bytes]) -> Any:
    try:
        return _PlainUnpickler(stream).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise DiagnosticsError(
            f"{path} is no whole dump of a flight recorder ({error}); take it anew"
        ) from error


def _dump(rank: int, path: Path, found: Any, files: int) -> RankDump:
    try:
        groups = tuple(_group(name, told) for name, told in found["pg_config"].items())
        calls = tuple(_call(entry) for entry in found["entries"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DiagnosticsError(
            f"{path} is no dump of a flight recorder of torch 2.13 ({type(error).__name__}: {error}); give "
            "the files of one job in one folder"
        ) from error
    newest = max((call.created for call in calls), default=0.0)
    return RankDump(
        rank=rank,
        world_size=max([files, *(max(group.ranks) + 1 for group in groups if group.ranks)]),
        host="",
        pid=0,
        reason="timeout",
        taken=max(newest, path.stat().st_mtime),
        backend=calls[-1].op.partition(":")[0] if calls else "",
        groups=groups,
        calls=tuple(_without_backend(call) for call in calls),
    )


def _group(name: str, told: Mapping[str, Any]) -> Group:
    ranks = re.findall(r"\d+", str(told["ranks"]))
    return Group(_plain(name), str(told.get("desc", "")), tuple(map(int, ranks)))


def _call(entry: Mapping[str, Any]) -> Call:
    p2p, name = bool(entry["is_p2p"]), str(entry["profiling_name"])
    # gloo's records have no events of a device: a retired one is done. HCCL's retires what timed out, too.
    retired = name.startswith("gloo") and entry["retired"]
    state = "completed" if retired else str(entry["state"])
    stack = tuple(Frame(one["filename"], one["line"], one["name"]) for one in entry.get("frames", ()))
    return Call(
        group=_plain(str(entry["process_group"][0])),
        sequence=int(entry["p2p_seq_id" if p2p else "collective_seq_id"]),
        p2p=p2p,
        op=name or next((one.function for one in stack if one.file.endswith(C10D)), ""),
        input_shapes=_shapes(entry["input_sizes"]),
        input_dtypes=tuple(entry["input_dtypes"]),
        output_shapes=_shapes(entry["output_sizes"]),
        output_dtypes=tuple(entry["output_dtypes"]),
        state=state if state in STATES else "scheduled",
        created=entry["time_created_ns"] / 1e9,
        stack=stack,
        peer=_peer(name),
    )


def _plain(group: str) -> str:
    """Return torch's name of a group, before which torch_npu puts words of its own."""
    return group.removeprefix("group_name_")


def _shapes(sizes: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(size) for size in sizes)


def _peer(name: str) -> int | None:
    """Return the other side of `nccl:send 0->1` or `nccl:recv 0<-1`, as torch writes them."""
    found = re.search(r"(?:->|<-)(\d+)$", name)
    return int(found[1]) if found else None


def _without_backend(call: Call) -> Call:
    return replace(call, op=call.op.rpartition(":")[2].partition(" ")[0])


def _of_size(dump: RankDump, world_size: int) -> RankDump:
    return replace(dump, world_size=world_size)
