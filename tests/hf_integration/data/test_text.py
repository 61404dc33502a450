"""Documents as token ids."""

from __future__ import annotations

import datasets
import numpy as np

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.data.text import tokenize

END = 256


def test_documents_end_with_the_end_of_text_token() -> None:
    text = tokenize(datasets.Dataset.from_dict({"text": ["ab", "", "ç"]}), build_byte_tokenizer())
    assert text.tokens.read(0, 6).tolist() == [97, 98, END, 0xC3, 0xA7, END]
    assert text.lengths.tolist() == [3, 0, 3]
    assert text.lengths.dtype == np.int64
    assert text.num_bytes == 4
    assert text.tokens_per_byte == 6 / 4
