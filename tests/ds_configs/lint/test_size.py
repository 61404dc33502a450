"""The work grows with the file and not with its square: a large wrong file is answered, too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ds_configs.lint import Options, lint_text

LARGE: dict[str, Callable[[int], str]] = {
    "unknown keys": lambda n: f'{{"train_batch_size": 8, {_list(f"{_q(i)}: 1" for i in range(n))}}}',
    "refused keys": lambda n: f'{{"fp16": {{{_list(f"{_q(i)}: 1" for i in range(n))}}}}}',
    "one key again and again": lambda n: f"{{{_list(_q(0) + ': 1' for _ in range(n))}}}",
    "Python's literals": lambda n: f"{{{_list(f'{_q(i)}: True' for i in range(n))}}}",
    "comments": lambda n: "{" + "// why\n" * n + "}",
    "a list": lambda n: f'{{"x": [{_list("1" for _ in range(n))}]}}',
}


def _list(items: Any) -> str:
    return ",\n".join(items)


def _q(number: int) -> str:
    return f'"k{number}"'


def lines_run(text: str) -> int:
    """How many lines of Python linting ``text`` runs, every turn of a comprehension counted."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        lint_text(text, Options("both"))
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("what", LARGE)
def test_the_work_grows_with_the_file_not_with_its_square(what: str) -> None:
    lint_text("{}")  # reads the schema and the tables
    small, large = (lines_run(LARGE[what](n)) for n in (150, 600))
    assert large < 4 * small
