"""Sizes of memory as people write them."""

from __future__ import annotations

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64GiB", 64 << 30),
        ("64G", 64 << 30),
        ("1.5 MiB", 3 << 19),
        ("1000", 1000),
        ("2TB", 2 << 40),
        (f"{2**53 + 1}", 2**53 + 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "reason"), [("-1GiB", "no size"), ("64 apples", "no size"), ("0", "no memory")]
)
def test_what_is_no_size(text: str, reason: str) -> None:
    with pytest.raises(DsConfigError, match=reason):
        parse_bytes(text)


def test_what_lacks_its_unit_is_told_what_it_means() -> None:
    with pytest.raises(DsConfigError, match="'64' is only 64 bytes; write 64GiB"):
        parse_bytes("64", least=1 << 20)
