"""Checkpoints of a run, one directory each, that are either there and whole or not there at all.

A run's directory holds ``checkpoint-<step>`` for each save, which is written aside and renamed (`aside`).
Older ones beyond `save_total_limit` are renamed to ``.tmp-…`` and deleted then.

So whenever a process dies, whatever is called ``checkpoint-…`` is whole (`latest_good` reads it to be sure:
disks have faults of their own), and ``.tmp-…`` is rubbish that the next save clears away.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ds_configs.parallel import ParallelConfig
from npu_plugins.checkpoint.aside import ASIDE, Saving, delete
from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.manifest import MANIFEST_FILE, Layout, Manifest
from npu_plugins.checkpoint.ranks import Ranks
from npu_plugins.comm import ProcessMesh

_NAME = re.compile(r"checkpoint-(\d+)")


class Checkpoint(NamedTuple):
    """A checkpoint that was found good."""

    path: Path
    manifest: Manifest


def checkpoint_name(step: int) -> str:
    """Return the name of a step's checkpoint, the one that transformers' Trainer gives it."""
    return f"checkpoint-{step}"


def save_checkpoint(
    directory: str | Path,
    step: int,
    write: Callable[[Path], None],
    *,
    model: str,
    mesh: ProcessMesh | None = None,
    zero_stage: int = 0,
    save_total_limit: int | None = None,
    keep: Collection[int] = (),
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Save the state of a step, whole or not at all (a collective of all ranks of the mesh).

    Args:
        directory: the run's; the checkpoint becomes ``directory/checkpoint-<step>``.
        step: how many optimizer steps were done.
        write: called on every rank with the directory to write into, the same for all: each rank writes files
            of its own names, in folders if it likes. If it communicates, it must not fail on one rank while
            others wait for that one (`save_hf` does not).
        model: `model_digest` of the configuration.
        mesh: the job's; None for a single process.
        zero_stage: DeepSpeed's, for the manifest.
        save_total_limit: how many checkpoints of the run stay: the newest, of which this is one. None: all.
        keep: steps whose checkpoints stay besides, such as the best one's.
        extra: goes to the manifest; the first rank's counts.

    Returns:
        The checkpoint's path.

    Raises:
        CheckpointError: on every rank, if one could not do its part: nothing has changed then, and what was
            there before is still there.
    """
    directory, ranks = Path(directory), Ranks(mesh)
    if save_total_limit is not None and save_total_limit < 1:
        raise CheckpointError(
            f"save_total_limit is {save_total_limit}, which would delete what was just saved; give 1 or more"
        )
    if step < 0:
        raise CheckpointError(f"step is {step}; give the number of steps that were done")
    steps = ranks.tell(step)
    if len(set(steps)) > 1:
        raise CheckpointError(f"the ranks save steps {steps}; let all of them save after the same step")
    layout = Layout(ParallelConfig() if mesh is None else mesh.config, zero_stage)
    target = directory / checkpoint_name(step)
    job = Saving(target, ranks, "make room, or lower save_total_limit")
    job.run(write, lambda records: Manifest(step, layout, model, records, dict(extra or {})))
    limit, kept = save_total_limit, {step, *keep}
    job.clear(None if limit is None else lambda: rotate(directory, limit, kept))
    return target


def steps_in(directory: str | Path) -> dict[int, Path]:
    """Return the checkpoints of a run by step, newest first, good or not; also of Trainer's own."""
    found: dict[int, Path] = {}
    for path in Path(directory).glob("*checkpoint-*"):
        name = path.name.removeprefix(ASIDE)
        match = _NAME.fullmatch(name)
        # One that stepped aside counts only if the crash came before its successor had the name.
        if match and path.is_dir() and (name == path.name or not path.with_name(name).exists()):
            found[int(match.group(1))] = path
    return dict(sorted(found.items(), reverse=True))


def rotate(directory: str | Path, limit: int, keep: Collection[int] = ()) -> list[Path]:
    """Delete the run's older checkpoints so that `limit` are left, those of `keep` among them if they fit.

    Only checkpoints with a manifest of ours count and are deleted. One whose files are not all there in their
    sizes goes first, and the newest that is whole is never deleted.

    Args:
        directory: the run's.
        limit: how many stay.
        keep: steps that are not deleted in any case.

    Returns:
        What was deleted.
    """
    whole: list[int] = []
    broken: list[int] = []
    for step, path in steps_in(directory).items():
        if (path / MANIFEST_FILE).is_file():
            (whole if _is_whole(path) else broken).append(step)
    kept = (set(keep) & {*whole, *broken}) | set(whole[:1])
    room = max(0, limit - len(kept))
    kept |= set([step for step in whole if step not in kept][:room])
    paths = steps_in(directory)
    gone = [paths[step] for step in [*broken, *whole] if step not in kept]
    for path in gone:
        delete(path)
    return gone


def latest_good(directory: str | Path, mesh: ProcessMesh | None = None) -> Checkpoint | None:
    """Return the newest checkpoint of a run that is whole: sizes and checksums as its manifest says.

    The ranks of the mesh divide the reading and get the same answer (a collective). What is passed over is
    logged, with the reason.

    Args:
        directory: the run's; it need not exist.
        mesh: the job's; None for a single process.

    Returns:
        None if there is none.
    """
    ranks = Ranks(mesh)
    for name in ranks.first([path.name for path in steps_in(directory).values()] if not ranks.rank else None):
        path = Path(directory, name)
        faults = find_faults(path, mesh)
        if not faults:
            return Checkpoint(path, Manifest.read(path))
        more = f" and {len(faults) - 1} more faults" if len(faults) > 1 else ""
        logging.getLogger(__name__).warning("%s is passed over: %s%s", path, faults[0], more)
    return None


def find_faults(path: str | Path, mesh: ProcessMesh | None = None) -> list[str]:
    """Read a checkpoint of ours through; return what is wrong with it, [] if nothing is (a collective).

    Every rank returns the same.
    """
    return faults_on(path, Ranks(mesh))


def faults_on(path: str | Path, ranks: Ranks) -> list[str]:
    """As `find_faults`, by ranks of any kind."""
    found: list[str] = []
    try:
        manifest = Manifest.read(path)
        mine = ranks.share({name: each.size for name, each in manifest.files.items()})
        found = [str(fault) for fault in manifest.faults(path, mine)]
    except CheckpointError as error:
        found = [str(error)]
    return list(dict.fromkeys(fault for part in ranks.tell(found) for fault in part))


def _is_whole(path: Path) -> bool:
    try:
        return not Manifest.read(path).faults(path, checksums=False)
    except CheckpointError:
        return False
