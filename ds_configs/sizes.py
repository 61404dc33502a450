"""Sizes of memory as people write them."""

from __future__ import annotations

import re

from ds_configs.errors import DsConfigError

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_bytes(text: str) -> int:
    """Return the bytes that "64GiB", "512MiB" or "1000000" means.

    Raises:
        DsConfigError: it means none, or nothing above zero.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])i?)?B?\s*", text, re.IGNORECASE)
    if not match:
        raise DsConfigError(f"{text!r} is no size of memory; write 64GiB, 512MiB or a number of bytes")
    if float(match.group(1)) == 0:
        raise DsConfigError(f"{text!r} is no memory at all; write 64GiB, 512MiB or a number of bytes")
    shift = UNITS[(match.group(2) or "").upper()]
    return int(float(match.group(1)) * (1 << shift))
