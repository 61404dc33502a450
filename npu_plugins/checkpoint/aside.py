"""A directory that ranks write together, and that gets its name only when it is whole.

Both kinds of saves come about so: a run's periodic checkpoints (`atomic`), and those of the pipeline engine
under DeepSpeed's tags.

1. ``.tmp-<name>`` is made, and every rank writes its files there.
2. When all have, the ranks divide the files among them: each is read back for its checksum and synchronised
   to the disk.
3. The first rank writes the manifest, synchronises it and the directories, and renames all. What had the
   name before steps aside first, as ``.old-<name>``, and is deleted last.

So whenever a process dies, whatever has its name is whole. Every rank must see the one directory, as on a
shared file system.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.manifest import MANIFEST_FILE, FileRecord, Manifest, record
from npu_plugins.checkpoint.ranks import Ranks, attempt, sentence

TEMPORARY = ".tmp-"
ASIDE = ".old-"
_DELETED = "deleted-"
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT))


class Saving:
    """One save in progress.

    Args:
        target: the directory that is to be.
        ranks: that save.
        make_room: what a user does about a disk that is full, for the message.
    """

    def __init__(self, target: Path, ranks: Ranks, make_room: str = "make room") -> None:
        self.target, self.ranks, self.make_room = target, ranks, make_room
        self.staging = target.with_name(TEMPORARY + target.name)

    def run(
        self, write: Callable[[Path], None], manifest: Callable[[dict[str, FileRecord]], Manifest]
    ) -> None:
        """Save (a collective).

        Args:
            write: called on every rank with the directory to write into, the same for all.
            manifest: makes the manifest of the files.

        Raises:
            CheckpointError: on every rank, if one could not do its part: what was there before is still
                there.
        """
        self._together(self._begin)
        self._together(lambda: self._everyone_sees_it(write))
        records = self._collect()
        self._together(lambda: self._publish(manifest(records)))

    def clear(self, more: Callable[[], Any] | None = None) -> None:
        """Delete what the new directory replaces (the first rank); all ranks are told if that fails.

        Args:
            more: done afterwards.

        Raises:
            CheckpointError: on every rank; the new directory is there.
        """
        problem = None
        if self.ranks.rank == 0:
            problem = attempt(lambda: clean(self.target))
            if more is not None and problem is None:
                problem = attempt(more)
        told = self.ranks.first("" if problem is None else sentence(problem))
        if told:
            raise CheckpointError(
                f"{self.target.name} is saved in {self.target.parent}, but what it replaces could not be "
                f"deleted: {told}; mend that, or the disk fills"
            ) from problem

    def _together(self, action: Callable[[], None]) -> None:
        """Run it on every rank; go on if it succeeded on all of them, else undo everything and raise."""
        problem = attempt(action)
        told = self.ranks.tell("" if problem is None else sentence(problem))
        failed = [(rank, text) for rank, text in enumerate(told) if text]
        if not failed:
            return
        if self.ranks.rank == 0:
            attempt(lambda: clean(self.target))  # if that fails too, the next save does it
        self.ranks.tell(None)  # nobody goes on before what was half written is gone
        rank, text = failed[0]
        agreed = len(set(told)) == 1  # what all of them say, they have told each other already
        who = "" if agreed else f"rank {rank}: "
        others = f" (and {len(failed) - 1} more ranks failed)" if len(failed) > 1 and not agreed else ""
        full = any(reason in text for reason in _FULL)
        raise CheckpointError(
            f"{self.target.name} was not saved in {self.target.parent}: {who}{text}{others}; earlier "
            f"checkpoints are as they were; {self.make_room if full else 'mend that and save again'}"
        ) from problem

    def _begin(self) -> None:
        """Clear away what a crash left, and make the directory to write into (the first rank)."""
        if self.ranks.rank == 0:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            clean(self.target)
            self.staging.mkdir()

    def _everyone_sees_it(self, write: Callable[[Path], None]) -> None:
        """Let the rank write, if the directory is the same for it."""
        if not self.staging.is_dir():
            raise CheckpointError(
                f"{self.target.parent} is not the directory that the first rank sees under this name; save "
                "to a file system that all nodes share"
            )
        write(self.staging)

    def _collect(self) -> dict[str, FileRecord]:
        """Divide the files among the ranks, synchronise them, and return what each is."""
        sizes: dict[str, int] = {}
        mine: dict[str, FileRecord] = {}

        def look() -> None:
            if self.ranks.rank == 0:
                sizes.update(_sizes(self.staging))

        def read_back() -> None:
            for name in self.ranks.share(sizes):
                mine[name] = record(self.staging / name, sync=True)

        self._together(look)
        sizes.update(self.ranks.first(sizes))
        self._together(read_back)
        everyone = self.ranks.tell(mine)
        return {name: FileRecord(*fields) for part in everyone for name, fields in part.items()}

    def _publish(self, manifest: Manifest) -> None:
        """Complete the directory and give it its name (the first rank)."""
        if self.ranks.rank:
            return
        manifest.write(self.staging)
        for folder in {self.staging, *(path for path in self.staging.rglob("*") if path.is_dir())}:
            sync_directory(folder)
        if self.target.exists():
            self.target.rename(aside_of(self.target))
        self.staging.rename(self.target)
        sync_directory(self.target.parent)


def aside_of(target: Path) -> Path:
    """Return where a directory is while another one takes its name."""
    return target.with_name(ASIDE + target.name)


def found_at(target: Path) -> Path:
    """Return where a directory is: aside, if a crash came before its successor had the name."""
    aside = aside_of(target)
    return aside if aside.is_dir() and not target.is_dir() else target


def clean(target: Path) -> None:
    """Clear away what a crash of this save, or of one before it, left; put back what had stepped aside.

    Saves of one run have names that differ in their numbers alone; nothing else is touched. Nothing may be
    saving to the directory meanwhile.
    """
    for path in _siblings(target, ASIDE):
        original = target.with_name(path.name.removeprefix(ASIDE))
        if original.exists():
            delete(path)
        else:
            path.rename(original)
    for path in _siblings(target, TEMPORARY):
        shutil.rmtree(path)


def delete(path: Path) -> None:
    """Delete a directory so that a crash half-way leaves rubbish, never a checkpoint without some files."""
    doomed = path.with_name(f"{TEMPORARY}{_DELETED}{path.name.lstrip('.')}")
    if doomed.exists():
        shutil.rmtree(doomed)
    path.rename(doomed)
    shutil.rmtree(doomed)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace a small file in one step: a reader finds the old text or the new one."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def _siblings(target: Path, prefix: str) -> Iterator[Path]:
    """What is called as a save of the same run, after a prefix."""
    numbers = r"\d+".join(re.escape(part) for part in re.split(r"\d+", target.name))
    deleted = f"(?:{_DELETED}(?:{ASIDE.lstrip('.')})?)?" if prefix == TEMPORARY else ""
    pattern = re.compile(re.escape(prefix) + deleted + numbers)
    if target.parent.is_dir():
        yield from [path for path in target.parent.iterdir() if pattern.fullmatch(path.name)]


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
