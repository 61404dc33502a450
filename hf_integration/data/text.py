"""Pre-training: documents in, token ids out."""

from __future__ import annotations

from dataclasses import dataclass

import datasets
import numpy as np
import pyarrow.compute as pc
from transformers import PreTrainedTokenizerBase

from hf_integration.data.sequences import TokenStream


@dataclass(frozen=True)
class TokenizedText:
    """Documents as token ids, and how many bytes of UTF-8 they came from.

    Attributes:
        tokens: the documents, one behind the other.
        lengths: tokens of each document, int64.
        num_bytes: bytes of the text, the end-of-document tokens not counted.
    """

    tokens: TokenStream
    lengths: np.ndarray
    num_bytes: int

    @property
    def tokens_per_byte(self) -> float:
        """Turns nats per token into nats per byte."""
        return len(self.tokens) / self.num_bytes


def tokenize(documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> TokenizedText:
    """Return ``documents`` as token ids, each followed by the tokenizer's end-of-text token if it has one."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def encode(batch: dict[str, list[str]]) -> dict[str, list]:
        ids = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False)["input_ids"]
        sizes = [len(text.encode("utf-8")) for text in batch["text"]]
        # An empty document adds no end-of-text token either.
        return {"input_ids": [row + end if row else [] for row in ids], "num_bytes": sizes}

    features = datasets.Features(
        {"input_ids": datasets.Sequence(datasets.Value("int32")), "num_bytes": datasets.Value("int64")}
    )
    encoded = documents.map(
        encode, batched=True, batch_size=100, remove_columns=["text"], features=features, desc="Tokenizing"
    )
    column = encoded.data.column("input_ids")
    return TokenizedText(
        tokens=TokenStream([chunk.flatten().to_numpy() for chunk in column.chunks]),
        lengths=pc.list_value_length(column).to_numpy().astype(np.int64),
        num_bytes=int(pc.sum(encoded.data.column("num_bytes")).as_py()),
    )
