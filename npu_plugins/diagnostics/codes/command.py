"""`npu-plugins explain`."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

from npu_plugins.diagnostics.codes.explain import explain
from npu_plugins.diagnostics.errors import DiagnosticsError

_WIDTH = 110


def explain_command(options: argparse.Namespace) -> int:
    """Explain the codes of each file or word; returns 1 if one of them holds no code that is known."""
    unknown = []
    told = []
    for what in options.what:
        found = explain(_text_of(what))
        told += [one for one in found if one not in told]
        if not found:
            unknown.append(what)
    if options.json:
        print(json.dumps([asdict(one) for one in told], indent=1))
    else:
        print(
            "\n\n".join(
                textwrap.fill(str(one), _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
                for one in told
            )
        )
    for what in unknown:
        print(
            f"npu-plugins: no error code of HCCL, ACL or torch_npu is known in {what!r}; give a code such as "
            "EI0002 or 507015, or the log around the first error of each rank",
            file=sys.stderr,
        )
    return 1 if unknown else 0


def _text_of(what: str) -> str:
    """Return the text of a file or of standard input, or `what` itself: a code."""
    if what == "-":
        return sys.stdin.read()
    path = Path(what)
    if not path.exists():
        if "/" in what or path.suffix:
            raise DiagnosticsError(f"There is no file {what}; give a log, or a code such as EI0002 or 507015")
        return what.upper()  # as all codes are written
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DiagnosticsError(f"{what} cannot be read ({error.strerror}); give a log or a code") from error
