"""Prompts with completions: the completion is learnt, and where it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.data.answers import encode_completion, encode_with_answers, require_offsets
from hf_integration.errors import TrainingInputError

END = 256


@pytest.fixture(scope="module")
def of_bytes() -> PreTrainedTokenizerFast:
    """The tokenizer with one token per byte."""
    return build_byte_tokenizer()


@given(prompt=st.text(max_size=9), completion=st.text(max_size=9))
def test_bytes_of_the_completion_and_the_end_are_learnt(
    of_bytes: PreTrainedTokenizerFast, prompt: str, completion: str
) -> None:
    ids, belongs = encode_completion(of_bytes, prompt, completion)
    assert ids == [*prompt.encode(), *completion.encode(), END]
    assert belongs == [False] * len(prompt.encode()) + [True] * (len(completion.encode()) + 1)


def merging_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer that merges ``b`` and ``c`` into one token."""
    vocabulary = {"a": 0, "b": 1, "c": 2, "bc": 3, "<s>": 4, "</s>": 5}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("b", "c")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def test_token_across_the_border_belongs_to_the_answer() -> None:
    assert encode_completion(merging_tokenizer(), "ab", "ca") == ([0, 3, 0], [False, True, True])


def test_tokenizer_that_ends_texts_itself_gets_no_second_end() -> None:
    tokenizer = merging_tokenizer(bos_token="<s>", eos_token="</s>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 4), ("</s>", 5)]
    )
    assert encode_completion(tokenizer, "a", "b") == ([4, 0, 1, 5], [False, False, True, True])


def test_several_answers_in_one_text(of_bytes: PreTrainedTokenizerFast) -> None:
    text = "q: a q: bc"
    _, belongs = encode_with_answers(of_bytes, text, [(3, 4), (8, 10)], add_special_tokens=False)
    assert [i for i, flag in enumerate(belongs) if flag] == [3, 8, 9]


def test_tokenizer_without_offsets_is_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(TrainingInputError, match="Slow is written in Python and cannot say which characters"):
        require_offsets(Slow())
