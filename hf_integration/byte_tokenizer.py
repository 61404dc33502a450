"""A tokenizer with one token per byte, built from the ``tokenizers`` library's own parts.

It needs no training and no download, and since it is an ordinary fast tokenizer, ``save_pretrained`` and
``AutoTokenizer.from_pretrained`` handle it.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

END_OF_TEXT = "<|endoftext|>"


def build_byte_tokenizer(*, special_tokens_in_text: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose token ids 0…255 are byte values and whose id 256 ends a document.

    Args:
        special_tokens_in_text: whether ``<|endoftext|>``, spelled out, becomes that one token, as a chat
            template needs it; otherwise a document that spells it is text like any other.
    """
    # The byte-level pre-tokenizer writes each byte as one printable character; BPE without merges keeps them
    # apart.
    vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        split_special_tokens=not special_tokens_in_text,
    )
