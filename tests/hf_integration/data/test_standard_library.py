"""The text to train on where none is named."""

from __future__ import annotations

from hf_integration.data.standard_library import standard_library


def test_standard_library_is_cut_to_the_byte_and_the_same_each_time() -> None:
    once, again = standard_library(10_000), standard_library(10_000)
    assert once["text"] == again["text"]
    assert 9_990 < sum(len(text.encode("utf-8")) for text in once["text"]) <= 10_000
    assert "import" in "".join(once["text"])
