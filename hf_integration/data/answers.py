"""Which tokens of a text belong to its answers, by the characters that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from hf_integration.errors import TrainingInputError

Span = tuple[int, int]
"""First character and the one behind the last."""


def require_offsets(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise TrainingInputError unless ``tokenizer`` can say which characters a token stands for."""
    if not tokenizer.is_fast:
        raise TrainingInputError(
            f"{type(tokenizer).__name__} is written in Python and cannot say which characters a token stands "
            "for, so answers cannot be told from questions; give a directory with a tokenizer.json"
        )


def encode_with_answers(
    tokenizer: PreTrainedTokenizerBase, text: str, answers: Sequence[Span], *, add_special_tokens: bool
) -> tuple[list[int], list[bool]]:
    """Return the token ids of ``text`` and, for each, whether it belongs to one of ``answers``.

    A token that overlaps an answer belongs to it, the rule of ``return_assistant_tokens_mask`` too.

    Args:
        tokenizer: a fast one (`require_offsets`).
        text: to encode as a whole, so that its tokens are those of any other text.
        answers: spans of characters, in order.
        add_special_tokens: whether the tokenizer adds what it puts at the beginning and end of a text.
    """
    encoded = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
    belongs = [
        any(begin < stop and end > start for start, stop in answers)
        for begin, end in encoded["offset_mapping"]
    ]
    return encoded["input_ids"], belongs


def encode_completion(
    tokenizer: PreTrainedTokenizerBase, prompt: str, completion: str
) -> tuple[list[int], list[bool]]:
    """Return the token ids of ``prompt`` and ``completion`` and whether each belongs to the latter.

    The tokenizer's end-of-text token follows, where it has one, and belongs to the completion: the model is
    to learn where to stop.
    """
    spans = [(len(prompt), len(prompt) + len(completion))]
    ids, belongs = encode_with_answers(tokenizer, prompt + completion, spans, add_special_tokens=True)
    end = tokenizer.eos_token_id
    if end is not None and ids and ids[-1] == end:
        # The tokenizer ended the text itself; an end token has no characters, so no span holds it.
        belongs[-1] = True
    elif end is not None:
        ids, belongs = [*ids, end], [*belongs, True]
    return ids, belongs
