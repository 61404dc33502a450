"""Places in a text and edits to it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ds_configs.errors import DsConfigError

LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Edit:
    """The characters from ``start`` up to ``end`` become ``replacement``; offsets count characters."""

    start: int
    end: int
    replacement: str

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise DsConfigError(f"an edit runs from {self.start} to {self.end}; it must not run backwards")


@dataclass(frozen=True)
class LineMap:
    """Turns offsets into lines and columns, both counted from 1 and in characters, as editors do."""

    text: str
    starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        starts = (0, *(match.end() for match in LINE_END.finditer(self.text)))
        object.__setattr__(self, "starts", starts)

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column of ``offset``; an offset past the end is taken as the end."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect.bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1


def in_order(edits: Iterable[Edit]) -> list[Edit]:
    """Return ``edits`` by place, without those that overlap an earlier one (they may hold the next time)."""
    kept: list[Edit] = []
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end)):
        if not kept or edit.start >= kept[-1].end:
            kept.append(edit)
    return kept


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return ``text`` with ``edits`` applied; of edits that overlap the first one wins."""
    parts = []
    at = 0
    for edit in in_order(edits):
        parts += [text[at : edit.start], edit.replacement]
        at = edit.end
    return "".join([*parts, text[at:]])


@dataclass(frozen=True)
class OffsetMap:
    """Takes offsets in an edited text back to the text before its edits."""

    edits: Sequence[Edit]
    edited_starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        shift = 0
        starts = []
        for edit in self.edits:
            starts.append(edit.start + shift)
            shift += len(edit.replacement) - (edit.end - edit.start)
        object.__setattr__(self, "edited_starts", tuple(starts))

    def start(self, offset: int) -> int:
        """Return where a range that starts at ``offset`` of the edited text starts in the original."""
        return self._original(offset, bisect.bisect_right(self.edited_starts, offset), by_end=False)

    def end(self, offset: int) -> int:
        """Return where a range that ends at ``offset`` of the edited text ends in the original."""
        return self._original(offset, bisect.bisect_left(self.edited_starts, offset), by_end=True)

    def _original(self, offset: int, edits_before: int, by_end: bool) -> int:
        if edits_before == 0:
            return offset
        edit = self.edits[edits_before - 1]
        past = offset - self.edited_starts[edits_before - 1] - len(edit.replacement)
        if past < 0:  # inside what the edit wrote, which stands for all that it replaced
            return edit.end if by_end else edit.start
        return edit.end + past
