"""One oracle for all tests of lint: starting it takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ds_configs.oracle import Oracle


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """The installed DeepSpeed, transformers and accelerate."""
    running = Oracle()
    yield running
    running.close()
