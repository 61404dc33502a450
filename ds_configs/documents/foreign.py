"""Tells what a file is that is not JSON at all."""

from __future__ import annotations

import re

# In the order tried; a pattern looks at the text before the first brace, or at all of it if there is none.
KINDS = (
    (
        "a shell script",
        re.compile(r"\A#!.*\b(?:ba|z|k)?sh\b|^\s*(?:export \w+=|set -\w|torchrun |accelerate )", re.M),
    ),
    (
        "a Python file",
        re.compile(r"\A#!.*python|^(?:import \w|from [\w.]+ import |def \w+\(|class \w)", re.M),
    ),
    ("XML or HTML", re.compile(r"\A\s*<(?:\?xml|!DOCTYPE|html|!--|[a-z]+>)", re.I)),
    ("TOML or INI", re.compile(r"^\[{1,2}[A-Za-z][\w.\- ]*\]{1,2}\s*$|^\w[\w.\-]*\s*=\s*[^={]", re.M)),
    ("YAML", re.compile(r"\A---\s*$|^\s*[\w\-]+:(?:\s|$)", re.M)),
    ("a log or CSV", re.compile(r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d|^[^,\n{\"]+(?:,[^,\n{\"]+){2,}$", re.M)),
)
ASSIGNMENT = re.compile(
    r"\s*(?:(?:const|let|var|export\s+const|return)\s+)?[\w.]+(?:\s*:\s*[\w.\[\], ]+)?\s*=\s*\Z"
    r"|\s*return\s*\Z"
)
SECTION = re.compile(r"\[{1,2}[A-Za-z][\w.\- ]*\]{1,2}[ \t]*(?:[\r\n]|\Z)(?!\s*\Z)")
BASE64 = re.compile(r"\s*[A-Za-z0-9+/_-]{16,}={0,2}\s*\Z")


def foreign_kind(text: str) -> str | None:
    """Return what ``text`` is if it is another kind of file, such as "YAML", or None."""
    if BASE64.match(text) and not text.strip().isdigit():
        return "base64 text"
    head = text.partition("{")[0]
    if ASSIGNMENT.match(head):
        return None
    for kind, pattern in KINDS:
        if pattern.search(head):
            return kind
    return None


def is_section(line: str) -> bool:
    """Whether ``line``, which starts with a bracket, is the head of a TOML or INI section, not of a list."""
    return SECTION.match(line) is not None


def is_assignment(head: str) -> bool:
    """Whether ``head``, the text before the first brace, gives the object a name as a program does."""
    return ASSIGNMENT.match(head) is not None
