"""Fixtures of the tests of ds_configs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.ds_configs.oracle import Oracle


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """The installed DeepSpeed and transformers; importing them takes seconds, once."""
    with contextlib.closing(Oracle()) as process:
        yield process
