"""Sizes of memory as people write them."""

from __future__ import annotations

import re

from ds_configs.errors import DsConfigError

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
SUGGESTION = "write 64GiB, 512MiB or a number of bytes"


def parse_bytes(text: str, *, least: int = 1) -> int:
    """Return the bytes that "64GiB", "512MB" or "1000000" means; all units are powers of 1024.

    Raises:
        DsConfigError: it means none, or fewer than ``least``.
    """
    match = re.fullmatch(r"\s*([0-9]+)(?:\.([0-9]+))?\s*(?:([KMGT])i?)?B?\s*", text, re.IGNORECASE)
    if not match:
        raise DsConfigError(f"{text!r} is no size of memory; {SUGGESTION}")
    whole, fraction, unit = match.group(1), match.group(2) or "", (match.group(3) or "").upper()
    size = (int(whole + fraction) << UNITS[unit]) // 10 ** len(fraction)
    if size < least:
        meant = f"only {size} bytes" if size else "no memory at all"
        raise DsConfigError(f"{text!r} is {meant}; {SUGGESTION}")
    return size
