"""Checkpoints of a run, one directory each, that are either there and whole or not there at all.

A run's directory holds ``checkpoint-<step>`` for each save. One comes about so:

1. ``.tmp-checkpoint-<step>`` is made, and every rank writes its files there.
2. When all have, the ranks divide the files among them: each is read back for its checksum and synchronised
   to the disk.
3. The first rank writes the manifest, synchronises it and the directories, and renames all. What had the
   name before steps aside first, as ``.old-checkpoint-<step>``, and is deleted last.
4. Older ones beyond `save_total_limit` are renamed to ``.tmp-…`` and deleted.

So whenever a process dies, whatever is called ``checkpoint-…`` is whole (`latest_good` reads it to be sure:
disks have faults of their own), and ``.tmp-…`` is rubbish that the next save clears away. Every rank must see
the one directory, as on a shared file system.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ds_configs.parallel import ParallelConfig
from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.manifest import MANIFEST_FILE, FileRecord, Layout, Manifest, record
from npu_plugins.checkpoint.ranks import Ranks
from npu_plugins.comm import ProcessMesh

TEMPORARY = ".tmp-"
ASIDE = ".old-"
_NAME = re.compile(r"checkpoint-(\d+)")
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT))


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
    job = _Saving(directory, checkpoint_name(step), ranks)
    job.together(job.begin)
    job.together(lambda: job.everyone_sees_it(write))
    records = job.collect()
    layout = Layout(ParallelConfig() if mesh is None else mesh.config, zero_stage)
    manifest = Manifest(step, layout, model, records, dict(extra or {}))
    job.together(lambda: job.publish(manifest))
    job.tidy(save_total_limit, {step, *keep})
    return directory / checkpoint_name(step)


class _Saving:
    """One save in progress."""

    def __init__(self, directory: Path, name: str, ranks: Ranks) -> None:
        self.directory, self.name, self.ranks = directory, name, ranks
        self.staging = directory / (TEMPORARY + name)

    def together(self, action: Callable[[], None]) -> None:
        """Run it on every rank; go on if it succeeded on all of them, else undo everything and raise."""
        self._agree(_attempt(action))

    def begin(self) -> None:
        """Clear away what a crash left, and make the directory to write into (the first rank)."""
        if self.ranks.rank == 0:
            self.directory.mkdir(parents=True, exist_ok=True)
            clean(self.directory)
            self.staging.mkdir()

    def everyone_sees_it(self, write: Callable[[Path], None]) -> None:
        """Let the rank write, if the directory is the same for it."""
        if not self.staging.is_dir():
            raise CheckpointError(
                f"{self.directory} is not the directory that the first rank sees under this name; save to a "
                "file system that all nodes share"
            )
        write(self.staging)

    def collect(self) -> dict[str, FileRecord]:
        """Divide the files among the ranks, synchronise them, and return what each is."""
        sizes: dict[str, int] = {}
        mine: dict[str, FileRecord] = {}

        def look() -> None:
            if self.ranks.rank == 0:
                sizes.update(_sizes(self.staging))

        def read_back() -> None:
            for name in self.ranks.share(sizes):
                mine[name] = record(self.staging / name, sync=True)

        self.together(look)
        sizes.update(self.ranks.first(sizes))
        self.together(read_back)
        everyone = self.ranks.tell(mine)
        return {name: FileRecord(*fields) for part in everyone for name, fields in part.items()}

    def publish(self, manifest: Manifest) -> None:
        """Complete the directory and give it its name (the first rank)."""
        if self.ranks.rank:
            return
        manifest.write(self.staging)
        for folder in {self.staging, *(path for path in self.staging.rglob("*") if path.is_dir())}:
            _sync_directory(folder)
        target, aside = self.directory / self.name, self.directory / (ASIDE + self.name)
        if target.exists():
            target.rename(aside)
        self.staging.rename(target)
        _sync_directory(self.directory)

    def tidy(self, limit: int | None, keep: Collection[int]) -> None:
        """Delete what the new checkpoint replaces (the first rank); all ranks are told if that fails."""
        problem = None
        if self.ranks.rank == 0:
            problem = _attempt(lambda: clean(self.directory))
            if limit is not None and problem is None:
                problem = _attempt(lambda: rotate(self.directory, limit, keep))
        told = self.ranks.first("" if problem is None else _sentence(problem))
        if told:
            raise CheckpointError(
                f"{self.name} is saved in {self.directory}, but what it replaces could not be deleted: "
                f"{told}; mend that, or the disk fills"
            ) from problem

    def _agree(self, problem: Exception | None) -> None:
        told = self.ranks.tell("" if problem is None else _sentence(problem))
        failed = [(rank, text) for rank, text in enumerate(told) if text]
        if not failed:
            return
        if self.ranks.rank == 0:
            _attempt(lambda: clean(self.directory))  # if that fails too, the next save does it
        rank, text = failed[0]
        who = f"rank {rank}: " if self.ranks.size > 1 else ""
        others = f" (and {len(failed) - 1} more ranks failed)" if len(failed) > 1 else ""
        full = any(reason in text for reason in _FULL)
        mend = "make room, or lower save_total_limit" if full else "mend that and save again"
        raise CheckpointError(
            f"{self.name} was not saved in {self.directory}: {who}{text}{others}; earlier checkpoints are as "
            f"they were; {mend}"
        ) from problem


def clean(directory: Path) -> None:
    """Clear away what a crash left behind; put back a checkpoint that had stepped aside for a new one.

    Nothing may be saving to `directory` meanwhile.
    """
    for path in directory.glob(f"{ASIDE}checkpoint-*"):
        original = directory / path.name.removeprefix(ASIDE)
        if original.exists():
            _delete(path)
        else:
            path.rename(original)
    for pattern in ("checkpoint-*", "deleted-*checkpoint-*"):
        for path in directory.glob(TEMPORARY + pattern):
            shutil.rmtree(path)


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
        _delete(path)
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
    ranks = Ranks(mesh)
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


def _attempt(action: Callable[[], Any]) -> Exception | None:
    try:
        action()
    except Exception as error:  # whatever it is, the other ranks wait for this one and are told
        return error
    return None


def _sentence(error: Exception) -> str:
    if isinstance(error, CheckpointError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _sizes(directory: Path) -> dict[str, int]:
    """The files that were written, by name.

    Raises:
        CheckpointError: there are none, or one has the manifest's name.
    """
    files = (path for path in directory.rglob("*") if path.is_file())
    sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}
    if not sizes:
        raise CheckpointError("no rank wrote a file into the directory that `write` was given")
    if MANIFEST_FILE in sizes:
        raise CheckpointError(f"`write` wrote {MANIFEST_FILE}, which is made here; leave it out")
    return sizes


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(path: Path) -> None:
    """Delete a directory so that a crash half-way leaves rubbish, never a checkpoint without some files."""
    doomed = path.with_name(f"{TEMPORARY}deleted-{path.name.lstrip('.')}")
    if doomed.exists():
        shutil.rmtree(doomed)
    path.rename(doomed)
    shutil.rmtree(doomed)
