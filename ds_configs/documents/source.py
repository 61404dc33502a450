"""From a path to text: every way in which a file can fail to be text."""

from __future__ import annotations

import codecs
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ds_configs.documents.faults import Fault
from ds_configs.documents.text import Edit

STDIN = "-"
# A ds_config of every key DeepSpeed knows is below 20 kB: more is a model file, a log or data.
LARGEST_BYTES = 2_000_000

MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What cp1252 has where Latin-1 has control characters: quotation marks, dashes, the euro sign.
WINDOWS = re.compile(f"[{bytes(range(0x80, 0xA0)).decode('cp1252', 'ignore')}]")
CHINESE = re.compile("[\u4e00-\u9fff]")
# The first bytes of formats that people pass by mistake, and how each is called.
MAGIC = (
    (b"\x89PNG", "a PNG image"),
    (b"PK\x03\x04", "a ZIP archive (or a torch checkpoint)"),
    (b"\x1f\x8b", "gzip data"),
    (b"%PDF", "a PDF document"),
    (b"\x80\x02", "pickled Python data"),
    (b"\x80\x04", "pickled Python data"),
    (b"\x7fELF", "a program"),
)


@dataclass(frozen=True)
class Source:
    """A file as text, or the faults that forbid it."""

    path: str
    text: str | None
    encoding: str = "utf-8"
    faults: tuple[Fault, ...] = field(default=())


def read_source(path: str) -> Source:
    """Read ``path`` (``-``: standard input); what goes wrong comes back as a fault, never as an exception."""
    if path == STDIN:
        return source_of_bytes(path, sys.stdin.buffer.read(LARGEST_BYTES + 1))
    file = Path(path)
    try:
        if file.is_dir():
            inside = sorted(child.name for child in file.glob("*.json"))[:3]
            hint = f"it holds {', '.join(inside)}: name one" if inside else "name the JSON file"
            return _refused(path, "unreadable", f"{path} is a directory", hint)
        if not file.is_file() and file.exists():
            return _refused(path, "unreadable", f"{path} is a device or a pipe", "name a file, or `-`")
        with file.open("rb") as stream:
            return source_of_bytes(path, stream.read(LARGEST_BYTES + 1))
    except FileNotFoundError:
        return _refused(path, "unreadable", f"{path} does not exist", "correct the path")
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        return _refused(path, "unreadable", f"{path} cannot be read: {reason}", "make it readable")


def source_of_bytes(path: str, data: bytes) -> Source:
    """Decode ``data`` as UTF-8, or find out what else it is."""
    if len(data) > LARGEST_BYTES:
        return _refused(
            path,
            "too_large",
            f"the file is larger than {LARGEST_BYTES // 1000} kB, which no ds_config.json is",
            "name the ds_config file, not data or a model's index",
        )
    for magic, what in MAGIC:
        if data.startswith(magic):
            return _refused(path, "binary", f"the file is {what}, not text", "name the JSON file")
    for mark, encoding in MARKS:
        if data.startswith(mark):
            return _decode_marked(path, data, encoding)
    guessed = _utf16_without_mark(data)
    if guessed:
        return _recoded(path, data, guessed)
    if b"\x00" in data:
        return _refused(path, "binary", "the file holds NUL bytes: it is not text", "name the JSON file")
    try:
        return Source(path, data.decode("utf-8"))
    except UnicodeDecodeError:
        return _eight_bit(path, data)


def _decode_marked(path: str, data: bytes, encoding: str) -> Source:
    if encoding != "utf-8-sig":
        return _recoded(path, data, encoding)
    try:
        return source_of_text(path, data.decode("utf-8"))
    except UnicodeDecodeError:
        return _eight_bit(path, data[len(codecs.BOM_UTF8) :])


def source_of_text(path: str, text: str) -> Source:
    """Return ``text`` as the content of ``path``; all that can be wrong is a byte order mark."""
    if not text.startswith("\ufeff"):
        return Source(path, text)
    mark = Fault(
        "byte_order_mark",
        0,
        1,
        "the file starts with a byte order mark, which DeepSpeed's reader skips and HF's json refuses",
        "save as UTF-8 without a mark",
        edits=(Edit(0, 1, ""),),
    )
    return Source(path, text, faults=(mark,))


def _utf16_without_mark(data: bytes) -> str | None:
    """Return the UTF-16 order of ASCII text without a mark: every second byte is zero."""
    sample = data[:200]
    if len(sample) < 4:
        return None
    if not any(sample[::2]) and all(sample[1::2]):
        return "utf-16-be"
    return "utf-16-le" if not any(sample[1::2]) and all(sample[::2]) else None


def _eight_bit(path: str, data: bytes) -> Source:
    """Decode bytes that are not UTF-8 by the likeliest encoding: GB 18030, Windows' own, else Latin-1."""
    for encoding, telling in (("gb18030", CHINESE), ("cp1252", WINDOWS)):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if telling.search(text):
            return _recoded(path, data, encoding, guessed=True)
    return _recoded(path, data, "latin-1", guessed=True)


def _recoded(path: str, data: bytes, encoding: str, guessed: bool = False) -> Source:
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return _refused(path, "binary", f"the file is neither UTF-8 nor whole {encoding}", "save as UTF-8")
    bad = _first_foreign(data)
    fault = Fault(
        "encoding",
        min(bad, len(text)),
        min(bad + 1, len(text)),
        f"the file {'seems to be' if guessed else 'is'} {encoding}, but DeepSpeed and HF read UTF-8",
        "save as UTF-8",
        # The text is written back as UTF-8: an edit of nothing says that writing is the mend.
        edits=(Edit(0, 0, ""),),
        safe=not guessed,
    )
    return Source(path, text, encoding, (fault,))


def _first_foreign(data: bytes) -> int:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return len(data[: error.start].decode("utf-8", "replace"))
    return 0


def _refused(path: str, kind: str, reason: str, mend: str) -> Source:
    return Source(path, None, faults=(Fault(kind, 0, 0, reason, mend),))
