"""What stands before and after the JSON object: code fences, prose, an assignment, more documents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import hjson

from ds_configs.documents import scan
from ds_configs.documents.faults import Fault
from ds_configs.documents.foreign import foreign_kind, is_assignment, is_section
from ds_configs.documents.text import Edit

FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\r\n]*(?:\r\n|\r|\n|\Z)", re.MULTILINE)
SECOND = re.compile(rf"(?:{FENCE.pattern})\s*[{{\[]", re.MULTILINE)
CONFLICT = re.compile(r"^<{7} .*$(?=[\s\S]*^={7}$[\s\S]*^>{7} )", re.MULTILINE)
LEFT_OVER = re.compile(r"(?:\s|[;,)}\]]|```[^\r\n]*|~~~[^\r\n]*|(?://|#)[^\r\n]*|/\*.*?\*/)+", re.DOTALL)
FIRST_KEY = re.compile(r"[\"'][\w-]+[\"']\s*:|[A-Za-z_]\w*\s*:\s*\{")


@dataclass(frozen=True)
class Core:
    """Where the JSON starts (comments may stand before it, from ``lead`` on), and where its fence closes."""

    lead: int
    start: int
    stop: int | None = None
    braceless: bool = False
    fatal: bool = False
    faults: tuple[Fault, ...] = field(default=())

    def after(self, text: str, end: int) -> list[Fault]:
        """Return the faults of what follows the object, which ended at ``end``."""
        rest = text[end:]
        bare = scan.COMMENT.sub("", rest).strip() if "`" not in rest else rest.strip()
        if not bare:
            comments = scan.COMMENT.finditer(text, end)
            return [
                _around("comment", c.start(), c.end(), "JSON has no comments", "delete the comment")
                for c in comments
            ]
        if self.braceless:
            return []
        start = end + len(rest) - len(rest.lstrip())
        shown = " ".join(rest.split())  # a reason is one line
        stop = end + len(rest.rstrip())
        if LEFT_OVER.fullmatch(rest) and not any(char in rest for char in "}])"):
            what = "a code fence" if "```" in rest or "~~~" in rest else shown
            return [_around("text_around", start, stop, f"{what} stands after the JSON object", "delete it")]
        if LEFT_OVER.fullmatch(rest):
            return [_around("bracket", start, stop, f"{shown[:20]} closes nothing", "delete it", safe=False)]
        if self.stop is not None and SECOND.search(rest):
            reason = "a second code fence with a JSON document follows; the readers take one"
            return [_around("several_documents", start, stop, reason, "keep one of them", safe=False)]
        if self.stop is not None:
            reason = "text stands after the JSON object's code fence"
            return [_around("text_around", start, stop, reason, "delete the text")]
        several = re.match(r"\s*,?\s*[{\[]", rest) is not None
        kind, reason = (
            ("several_documents", "a second JSON document follows; the readers take one")
            if several
            else ("extra_data", "the object is closed, but text follows")
        )
        return [_around(kind, start, stop, reason, "keep one object, and nothing after it", safe=False)]


def core_of(text: str) -> Core:
    """Find the JSON in ``text``."""
    if not text.strip("\ufeff \t\r\n"):
        return _fatal("empty", 0, "the file is empty", "write at least {}")
    conflict = CONFLICT.search(text)
    if conflict:
        mend = "keep one of its two sides, and delete the lines <<<<<<<, ======= and >>>>>>>"
        return _fatal("unreadable", conflict.start(), "a merge conflict is left in the file", mend)
    start = _skip(text, 0)
    if text[start : start + 1] in ("{", "[", "｛") and not is_section(text[start:]):
        return Core(0, start)
    if start >= len(text):
        return _fatal("empty", 0, "the file holds nothing but comments", "write at least {}")
    fenced = _fenced(text)
    if fenced:
        return fenced
    if FIRST_KEY.match(text, start) or _is_hjson_without_braces(text):
        braces = Fault(
            "missing_braces",
            start,
            start,
            "the outer braces are missing",
            "put { before the first key and } after the last value",
            (Edit(start, start, "{"), Edit(len(text), len(text), "\n}")),
        )
        return Core(0, start, braceless=True, faults=(braces,))
    kind = foreign_kind(text)
    if kind:
        return _fatal("foreign", start, f"this is {kind}, not JSON", "name the JSON file")
    return _prose_before(text, start)


def _prose_before(text: str, start: int) -> Core:
    brace = text.find("{", start)
    if brace < 0:
        shown = text[start : start + 30].split("\n")[0]
        return _fatal(
            "unreadable",
            start,
            f"there is no JSON object: the file starts with {shown!r}",
            "name the JSON file",
        )
    what = "an assignment" if is_assignment(text[:brace]) else "text"
    fault = _around("text_around", start, brace, f"{what} stands before the JSON object", "delete it")
    return Core(brace, brace, faults=(fault,))


def _fenced(text: str) -> Core | None:
    opening = FENCE.search(text)
    if not opening:
        return None
    brace = _skip(text, opening.end())
    if text[brace : brace + 1] not in ("{", "["):
        return None
    closing = FENCE.search(text, brace)
    what = "text and a code fence stand" if text[: opening.start()].strip() else "a code fence stands"
    fault = _around("text_around", 0, brace, f"{what} before the JSON object", "delete it")
    return Core(brace, brace, stop=closing.start() if closing else None, faults=(fault,))


def _is_hjson_without_braces(text: str) -> bool:
    """Whether DeepSpeed's reader takes ``text`` for an object whose outer braces are left out.

    It takes YAML too, but there it reads a nested key as the text "stage: 2".
    """
    if "{" not in text:
        return False
    try:
        inner = [hjson.loads(text)]
    except Exception:  # its reader fails with IndexError and OverflowError too
        return False
    is_object = isinstance(inner[0], dict)
    while is_object and inner:
        value = inner.pop()
        if isinstance(value, str) and ": " in value:
            return False
        inner += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return is_object


def _skip(text: str, at: int) -> int:
    """Return where blanks and comments that start at ``at`` end."""
    while True:
        match = scan.BLANK.match(text, at) or scan.COMMENT.match(text, at)
        if not match:
            return at
        at = match.end()


def _around(kind: str, start: int, end: int, reason: str, mend: str, safe: bool = True) -> Fault:
    return Fault(kind, start, end, reason, mend, (Edit(start, end, ""),), safe)


def _fatal(kind: str, start: int, reason: str, mend: str) -> Core:
    return Core(start, start, fatal=True, faults=(Fault(kind, start, start, reason, mend),))
