"""The byte tokenizer: every text round-trips, ids are byte values, and a saved one loads as the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_integration.byte_tokenizer import END_OF_TEXT, build_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> list[PreTrainedTokenizerBase]:
    """The tokenizer as built, and as saved and loaded again."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    built = build_byte_tokenizer()
    built.save_pretrained(folder)
    return [built, AutoTokenizer.from_pretrained(folder)]


@given(text=st.text())
def test_ids_are_the_bytes_of_the_text(tokenizers: list[PreTrainedTokenizerBase], text: str) -> None:
    for tokenizer in tokenizers:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert bytes(ids) == text.encode("utf-8")
        assert tokenizer.decode(ids) == text


def test_spelled_out_special_token_is_text(tokenizers: list[PreTrainedTokenizerBase]) -> None:
    for tokenizer in tokenizers:
        assert bytes(tokenizer(END_OF_TEXT, add_special_tokens=False)["input_ids"]) == END_OF_TEXT.encode()


def test_special_tokens_survive_saving(tokenizers: list[PreTrainedTokenizerBase]) -> None:
    for tokenizer in tokenizers:
        assert len(tokenizer) == 257
        assert tokenizer.eos_token_id == tokenizer.bos_token_id == tokenizer.pad_token_id == 256
        assert tokenizer.decode([104, 105, 256], skip_special_tokens=True) == "hi"


def test_bytes_that_are_no_text_decode_to_replacement_characters() -> None:
    assert build_byte_tokenizer().decode([0xFF, ord("a")]) == "\ufffda"
