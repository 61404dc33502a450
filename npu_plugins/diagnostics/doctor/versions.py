"""Versions as CANN, its driver and its firmware write them: 8.0.RC2.alpha002, 24.1.rc3.b999, 9.1.0-beta.3."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.version import Version  # imported on use: without it, most checks can still be made

# Up to the first part that PEP 440 does not know: rc3 of 24.1.rc3.b999, or RC2 of 8.0.RC2.alpha002.
_KNOWN = re.compile(r"\d+(?:\.\d+)*(?:[.-]?(?:rc|alpha|beta)[.-]?\d*|\.post\d+)?", re.IGNORECASE)


def parse(text: str) -> Version | None:
    """Return a version that can be compared, or None if the text begins with none."""
    from packaging.version import Version

    found = _KNOWN.match(text.strip())
    return Version(found.group()) if found else None


def series(text: str) -> str | None:
    """Return the first two numbers of a version: 25.5 of 25.5.1, or None if it has none."""
    version = parse(text)
    return f"{version.major}.{version.minor}" if version else None


def same_release(one: str, other: str) -> bool:
    """True when two versions have the same first two numbers."""
    return series(one) is not None and series(one) == series(other)
