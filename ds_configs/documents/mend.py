"""Reads almost-JSON: finds every place that is not JSON, and the edits that would make it so.

The reader is a loop over a stack of open brackets, so that no nesting can exhaust Python's own stack.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ds_configs.documents import scan
from ds_configs.documents.faults import Fault
from ds_configs.documents.surroundings import Core, core_of
from ds_configs.documents.text import Edit

DEEPEST = 64
ELLIPSIS = re.compile(r"(?:\.\.\.|…)(?=\s*(?:[,}\])]|[\"']|\Z))")
CLOSERS = {"{": "}", "[": "]"}
COMMENT_MEND = "delete the comment, or keep it in a README: HF reads strict JSON"


@dataclass
class Frame:
    """An open bracket: what closes it, how many members it has, and the comma that waits for one more."""

    closer: str
    opened: int
    members: int = 0
    comma: tuple[int, int] | None = None
    last_end: int = 0


@dataclass
class Mender:
    """One pass over ``text``: ``faults`` fill up on the way; ``stopped`` where nothing can be guessed."""

    text: str
    core: Core
    at: int = 0
    faults: list[Fault] = field(default_factory=list)
    stack: list[Frame] = field(default_factory=list)
    stopped: bool = False

    def run(self) -> None:
        """Read the whole core."""
        self.at = self.core.lead
        self._blank()
        if self.core.braceless:
            self.stack.append(Frame("", self.at))
        else:
            self._value()
        while self.stack and not self.stopped:
            self._member()
        if not self.stopped:
            self.faults += self.core.after(self.text, self.at)

    def fault(
        self, kind: str, start: int, end: int, reason: str, mend: str, new: str | None, safe: bool = True
    ) -> None:
        """Note that the characters ``start`` to ``end`` should be ``new`` (None: nobody can say)."""
        edits = () if new is None else (Edit(start, end, new),)
        self.faults.append(Fault(kind, start, end, reason, mend, edits, safe))
        self.stopped = self.stopped or new is None

    def _blank(self) -> None:
        while True:
            blank = scan.BLANK.match(self.text, self.at)
            if blank:
                odd = [place for place, char in enumerate(blank.group(), self.at) if char not in " \t\r\n"]
                for place in odd:
                    self.fault(
                        "blank",
                        place,
                        place + 1,
                        "an invisible character that JSON does not allow",
                        "delete it",
                        " ",
                    )
                self.at = blank.end()
            comment = scan.COMMENT.match(self.text, self.at)
            if not comment:
                if not blank:
                    return
                continue
            self.fault("comment", self.at, comment.end(), "JSON has no comments", COMMENT_MEND, "")
            self.at = comment.end()

    def _char(self) -> str:
        """Return the next character, in its ASCII form."""
        char = self.text[self.at : self.at + 1]
        return scan.WIDE.get(char, char)

    def _plain(self) -> None:
        """Note that the character at hand is not ASCII's, if so, and pass it."""
        char = self.text[self.at : self.at + 1]
        if char in scan.WIDE:
            plain = scan.WIDE[char]
            self.fault(
                "punctuation",
                self.at,
                self.at + 1,
                f"{char} stands where JSON has {plain}",
                f"write {plain}",
                plain,
            )
        self.at += 1

    def _member(self) -> None:
        """Read one member of the innermost bracket, or its end."""
        self._blank()
        frame = self.stack[-1]
        char = self._char()
        if char == "" or (self.core.stop is not None and self.at >= self.core.stop):
            self._end_of_text(frame)
        elif char in "}])" and char:
            self._close(frame, char)
        elif char == ",":
            self._comma(frame)
        elif ELLIPSIS.match(self.text, self.at):
            self._ellipsis(frame)
        else:
            if frame.members and frame.comma is None:
                self.fault(
                    "missing_comma",
                    frame.last_end,
                    frame.last_end,
                    "a comma is missing after this value",
                    "add the comma",
                    ",",
                )
            frame.comma = None
            frame.members += 1
            if frame.closer != "]" and not self._key():
                return
            self._value()
            # A bracket opened by _value reports its own end when it closes.
            frame.last_end = self.at

    def _ellipsis(self, frame: Frame) -> None:
        """Pass ``...`` in the place of members, with the comma before it."""
        start, self.at = self.at, self.at + (3 if self._char() == "." else 1)
        edit = Edit(start if frame.comma is None else frame.comma[0], self.at, "")
        reason = f"{self.text[start : self.at]} stands for something that is left out"
        mend = "write what is meant, or delete it"
        self.faults.append(Fault("placeholder", start, self.at, reason, mend, (edit,), safe=False))
        frame.comma = None

    def _comma(self, frame: Frame) -> None:
        start = self.at
        self._plain()
        if frame.comma is not None or not frame.members:
            self.fault(
                "extra_comma",
                start,
                self.at,
                "a comma stands here without a value before it",
                "delete it",
                "",
            )
        else:
            frame.comma = (start, self.at)

    def _close(self, frame: Frame, char: str) -> None:
        char = scan.SQUARE.get(char, char)
        if frame.closer == "":  # the root has no braces: this closer is the extra one
            self.fault("bracket", self.at, self.at + 1, f"{char} closes nothing", "delete it", "", safe=False)
            self.at += 1
            return
        if frame.comma is not None:
            start, end = frame.comma
            self.fault(
                "trailing_comma", start, end, f"a comma stands before {frame.closer}", "delete the comma", ""
            )
        start = self.at
        if char != frame.closer:
            reason = f"{char} closes a {'{' if frame.closer == '}' else '['}"
            self.fault(
                "bracket",
                start,
                start + 1,
                reason,
                f"write {frame.closer} or mend what is open",
                frame.closer,
                safe=False,
            )
            self.at += 1
        elif self.text[start] == ")":
            self.fault(
                "bracket", start, start + 1, "JSON has lists in [ ], not tuples in ( )", "write ]", "]"
            )
            self.at += 1
        else:
            self._plain()
        self._pop()

    def _pop(self) -> None:
        self.stack.pop()
        if self.stack:
            self.stack[-1].last_end = self.at

    def _end_of_text(self, frame: Frame) -> None:
        """Close everything that is open."""
        if frame.comma is not None:
            start, end = frame.comma
            self.fault("trailing_comma", start, end, "a comma stands before the end", "delete the comma", "")
        closers = "".join(open_frame.closer for open_frame in reversed(self.stack))
        if closers:
            end = len(self.text) if self.core.stop is None else self.core.stop
            reason = f"this bracket is never closed: {closers} is missing"
            mend = f"add {closers} where it belongs; the file may be cut off"
            edits = (Edit(end, end, closers),)
            self.faults.append(
                Fault("unfinished", frame.opened, frame.opened + 1, reason, mend, edits, safe=False)
            )
        self.stack.clear()

    def _key(self) -> bool:
        piece = scan.scan_string(self.text, self.at) or scan.scan_key_word(self.text, self.at)
        if piece is None:
            self._stop("a key is expected here")
            return False
        self._take(piece)
        self._blank()
        start = self.at
        char = self._char()
        if char == ":":
            self._plain()
        elif char == "=":
            self.at += 2 if self.text.startswith("=>", start) else 1
            self.fault("punctuation", start, self.at, "a key is followed by : in JSON", "write :", ":")
        elif char in (",", "}", "]", ""):
            self.fault(
                "missing_value",
                start,
                start,
                "this key has no value",
                "give it a value or delete it",
                ": null",
                safe=False,
            )
            self.stack[-1].last_end = self.at
            return False
        else:
            self.fault(
                "missing_colon",
                start,
                start,
                "a colon is missing between key and value",
                "add the colon",
                ":",
            )
        return True

    def _value(self) -> None:
        self._blank()
        char = self._char()
        opens = char in "{[(" and char != ""
        if opens and not (char == "{" and scan.PLACEHOLDER.match(self.text, self.at)):
            self._open(char)
            return
        if char in (",", "}", "]", ""):
            self.fault(
                "missing_value",
                self.at,
                self.at,
                "a value is missing here",
                "write the value",
                "null",
                safe=False,
            )
            return
        piece = scan.scan_string(self.text, self.at)
        if piece is None and self.stack and self.stack[-1].closer != "]":
            piece = scan.scan_number_with_commas(self.text, self.at)
        piece = piece or scan.scan_value_word(self.text, self.at)
        if piece is None:
            self._stop("a value is expected here")
            return
        self._take(piece)

    def _open(self, char: str) -> None:
        start = self.at
        if len(self.stack) >= DEEPEST:
            self.fault(
                "too_deep",
                start,
                start + 1,
                f"more than {DEEPEST} brackets are open",
                "a ds_config needs four",
                None,
            )
            return
        if char == "(":
            self.fault(
                "bracket", start, start + 1, "JSON has lists in [ ], not tuples in ( )", "write [", "["
            )
            self.at += 1
            char = "["
        else:
            self._plain()
        self.stack.append(Frame(CLOSERS[char], start))

    def _take(self, piece: scan.Piece) -> None:
        if piece.kind:
            mend = "fill it in" if piece.kind == "placeholder" else f"write {piece.json}"
            self.fault(piece.kind, self.at, piece.end, piece.reason, mend, piece.json, piece.safe)
        self.at = piece.end

    def _stop(self, reason: str) -> None:
        found = self.text[self.at : self.at + 12].split("\n")[0] or "the end of the file"
        self.fault(
            "unreadable",
            self.at,
            self.at + 1,
            f"{reason}, but {found!r} stands there",
            "rewrite this place",
            None,
        )


def mend(text: str) -> tuple[list[Fault], bool]:
    """Return the faults of ``text`` as JSON, and whether their edits make it readable."""
    core = core_of(text)
    if core.fatal:
        return list(core.faults), False
    mender = Mender(text, core, faults=list(core.faults))
    mender.run()
    return mender.faults, not mender.stopped
