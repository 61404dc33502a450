"""Message sizes as nccl-tests takes them on its command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from npu_plugins.diagnostics.errors import DiagnosticsError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def bytes_of(text: str) -> int:
    """Return the bytes that `text` says: ``8``, ``64M`` (MiB), ``1.5G``; a B at the end changes nothing.

    Raises:
        DiagnosticsError: it says no whole number of bytes.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.strip().upper())
    size = Fraction(found[1]) * _UNITS[found[2]] if found else Fraction(1, 2)
    if size != int(size):
        raise DiagnosticsError(f"{text!r} is no size in bytes; write it like 8, 32K, 64M or 1G")
    return int(size)


def parameters_of(text: str) -> int:
    """Return the number of parameters that `text` says: ``7B`` (10^9 each), ``350M``, ``124000000``.

    Raises:
        DiagnosticsError: it says no whole number of them.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", text.strip().upper())
    count = Fraction(found[1]) * 1000 ** " KMBT".index(found[2] or " ") if found else Fraction(0)
    if count < 1:
        raise DiagnosticsError(f"{text!r} is no number of parameters; write it like 7B, 350M or 124000000")
    return round(count)


def sizes_between(smallest: int, largest: int, *, step: int | None, factor: int | None) -> Sequence[int]:
    """Return the bytes from `smallest` to `largest`, each `factor` times the one before, or `step` more.

    Raises:
        DiagnosticsError: the sizes would not grow from `smallest` to `largest`, or both ways are asked for.
    """
    if smallest < 1 or smallest > largest:
        raise DiagnosticsError(
            f"Sizes from {smallest} to {largest} bytes (-b, -e) are none; give a first one of at least 1 "
            "byte and a last one that is not smaller"
        )
    if step is not None and factor is not None:
        raise DiagnosticsError(
            f"-i {step} and -f {factor} are two ways from one size to the next; give one of them"
        )
    if (factor is not None and factor < 2) or (step is not None and step < 1):
        raise DiagnosticsError(
            f"Sizes do not grow by {f'factor {factor} (-f)' if factor is not None else f'{step} bytes (-i)'};"
            " give a factor from 2 or a step from 1"
        )
    if factor is None:
        return range(smallest, largest + 1, step or _UNITS["M"])  # of any length, in no memory
    found = [smallest]
    while found[-1] * factor <= largest:
        found.append(found[-1] * factor)
    return found
