"""Error codes in a text, and what each means: data from the folder's JSON files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

# What the codes of each family look like in a log. A log is full of numbers, so a number is a code only after
# a word that says so, as in `error code is 107020` or `ret: 507011`, or as the whole text.
_WORD = r"(?i:err(?:or)?|ret(?:urn)?|result|status|code)[ _]?(?i:code|num|no)?"
_BEFORE = _WORD + r"[^\w\n]{0,4}(?i:is|was|of)?[^\w\n]{0,4}"
_FAMILIES = {
    "cann.json": re.compile(r"(?<![A-Za-z0-9])(E[A-Z]\d{4}|E[1-9]\d{4})(?![A-Za-z0-9])"),
    "acl.json": re.compile(rf"(?:\A\s*|\b{_BEFORE})(\d{{6}})(?!\d)|\b(ACL(?:NN)?_ERR\w+)"),
    "hccl.json": re.compile(
        r"(?i:hccl)[^\n]{0,160}?(?:error code is|\bret:?|\breturn(?:ed)?) (\d{1,2})(?!\d)"
        r"|(?m:^\s*HCCL (\d{1,2})\s*$)|\b(HCCL_E_\w+)"
    ),
    "torch_npu.json": re.compile(r"(?<![A-Za-z0-9])(ERR\d{5})(?!\d)"),
}


@dataclass(frozen=True)
class Explanation:
    """What an error code means."""

    code: str
    """As logs show it: `EI0002`, `107020`; for the results of HCCL's functions `HCCL 9`."""
    name: str
    """What its makers call it: `ACL_ERROR_RT_TASK_TIMEOUT`."""
    cause: str
    mend: str

    def __str__(self) -> str:
        """Return one paragraph."""
        return f"{self.code} ({self.name}): {self.cause} {self.mend}"


def explain(text: str) -> list[Explanation]:
    """Find the error codes in `text`, a code or a whole log; each once, in the order of the text.

    Codes are found by number and by name. What is no known code is passed over.
    """
    found: dict[Explanation, int] = {}
    for place, explanation in _matches(text):
        found[explanation] = min(place, found.get(explanation, place))
    return sorted(found, key=lambda explanation: found[explanation])


def known_codes() -> list[Explanation]:
    """Return every code of the tables."""
    return [explanation for family in _FAMILIES for explanation in _table(family).values()]


def _matches(text: str) -> Iterator[tuple[int, Explanation]]:
    for family, pattern in _FAMILIES.items():
        matches = list(pattern.finditer(text))
        table = _table(family) if matches else {}
        table |= {explanation.name: explanation for explanation in table.values() if "_E" in explanation.name}
        for match in matches:
            written = next(group for group in match.groups() if group is not None)
            if written in table:
                yield match.start(), table[written]


def _table(family: str) -> dict[str, Explanation]:
    """Read one family: its mends by name, and its codes, whose mend is a sentence or the name of one."""
    told = json.loads(files(__package__).joinpath(family).read_text(encoding="utf-8"))
    mends, prefix = told["mends"], told["prefix"]
    return {
        code: Explanation(
            prefix + code, entry["name"], entry["cause"], mends.get(entry["mend"], entry["mend"])
        )
        for code, entry in told["codes"].items()
    }
