"""Text in, fixed-length token sequences out, read and tokenized by ``datasets`` (memory-mapped, cached)."""

from __future__ import annotations

import bisect
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from torch.utils.data import Dataset, Subset
from transformers import PreTrainedTokenizerBase

from hf_integration.errors import TrainingInputError

JSON_SUFFIXES = frozenset({".json", ".jsonl"})
TEXT_SUFFIXES = frozenset({".txt", ".text", ".md", ".rst", ".py"})


@dataclass(frozen=True)
class TokenizedText:
    """Documents as token ids, and how many bytes of UTF-8 they came from.

    Attributes:
        parts: token ids of consecutive stretches of the text, int32, one array per Arrow chunk.
        num_bytes: bytes of the text, the end-of-document tokens not counted.
    """

    parts: list[np.ndarray]
    num_bytes: int

    @property
    def num_tokens(self) -> int:
        """Number of tokens, end-of-document tokens included."""
        return sum(len(part) for part in self.parts)


class PackedBlocks(Dataset):
    """Consecutive blocks of ``block_size`` tokens; only the last, incomplete one is dropped.

    Blocks run across documents and across Arrow chunks, so no text is lost to batch borders.
    """

    def __init__(self, text: TokenizedText, block_size: int) -> None:
        self.block_size = block_size
        self._parts = text.parts
        self._starts = [0, *accumulate(len(part) for part in text.parts)]

    def __len__(self) -> int:
        return self._starts[-1] // self.block_size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        start = index * self.block_size
        ids = torch.from_numpy(self._tokens(start, start + self.block_size).astype(np.int64))
        return {"input_ids": ids, "labels": ids}

    def _tokens(self, start: int, stop: int) -> np.ndarray:
        """Return tokens ``start`` to ``stop`` of the whole text."""
        first = bisect.bisect_right(self._starts, start) - 1
        last = bisect.bisect_left(self._starts, stop) - 1
        spans = zip(self._parts[first : last + 1], self._starts[first : last + 1], strict=True)
        return np.concatenate([part[max(start - begin, 0) : stop - begin] for part, begin in spans])


def standard_library_files() -> Iterator[Path]:
    """Yield the source files of Python's standard library, sorted, without tests and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
        if not skipped.intersection(path.relative_to(root).parts):
            yield path


def standard_library(max_bytes: int) -> datasets.Dataset:
    """Return up to ``max_bytes`` bytes of the standard library's source, one document per module.

    The last document is cut to meet the limit. The order is that of the sorted paths, the same on every rank.
    """
    documents, left = [], max_bytes
    for path in standard_library_files():
        source = path.read_bytes()[:left].decode("utf-8", errors="ignore")
        if source:
            documents.append(source)
            left -= len(source.encode("utf-8"))
        if left <= 0:
            break
    return datasets.Dataset.from_dict({"text": documents})


def find_files(path: Path) -> tuple[list[str], list[str]]:
    """Return the text files and the JSON files at ``path`` (a file, or a directory searched recursively).

    Raises:
        TrainingInputError: the directory holds neither kind.
    """
    if path.is_file():
        return ([], [str(path)]) if path.suffix in JSON_SUFFIXES else ([str(path)], [])
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    texts = [str(file) for file in files if file.suffix in TEXT_SUFFIXES]
    jsons = [str(file) for file in files if file.suffix in JSON_SUFFIXES]
    if not texts and not jsons:
        raise TrainingInputError(
            f"{path} holds no file that ends in {', '.join(sorted(TEXT_SUFFIXES | JSON_SUFFIXES))} among its "
            f"{len(files)} file(s); rename the text files or name one file"
        )
    return texts, jsons


def read_documents(path: Path, text_column: str) -> datasets.Dataset:
    """Return the documents at ``path`` in a column ``text``: one per text file, one per JSON record.

    Raises:
        TrainingInputError: nothing is there, a file cannot be read, or a record lacks ``text_column``.
    """
    texts, jsons = find_files(path)
    if all(Path(file).stat().st_size == 0 for file in texts + jsons):
        raise TrainingInputError(f"{path} is empty; give a file with text in it")
    found = []
    try:
        if texts:
            found.append(datasets.load_dataset("text", data_files=texts, sample_by="document", split="train"))
        if jsons:
            found.append(datasets.load_dataset("json", data_files=jsons, split="train"))
    except (datasets.exceptions.DatasetGenerationError, UnicodeDecodeError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise TrainingInputError(f"{path} cannot be read as UTF-8 text or JSON lines: {reason}") from error
    columns = ["text"] * bool(texts) + [text_column] * bool(jsons)
    return datasets.concatenate_datasets(
        [text_only(part, column, path) for part, column in zip(found, columns, strict=True)]
    )


def text_only(records: datasets.Dataset, column: str, path: Path) -> datasets.Dataset:
    """Return ``records`` with ``column`` alone, renamed ``text``; ``path`` is for the message.

    Raises:
        TrainingInputError: some record has no text there.
    """
    if column not in records.column_names:
        raise TrainingInputError(
            f"the records of {path} have no field {column!r} but {', '.join(records.column_names)}; "
            "name the right one with --text_column"
        )
    kind = getattr(records.features[column], "dtype", "a list")
    if kind not in ("string", "large_string"):
        raise TrainingInputError(
            f"field {column!r} of {path} holds {kind}, not text; name another one with --text_column"
        )
    missing = records.data.column(column).null_count
    if missing:
        raise TrainingInputError(
            f"{missing} of the {len(records)} records of {path} lack the field {column!r}; remove them"
        )
    records = records.select_columns([column])
    return records if column == "text" else records.rename_column(column, "text")


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
    parts = [chunk.flatten().to_numpy() for chunk in encoded.data.column("input_ids").chunks]
    return TokenizedText(parts=parts, num_bytes=int(pc.sum(encoded.data.column("num_bytes")).as_py()))


def split_blocks(blocks: PackedBlocks, fraction: float) -> tuple[Subset, Subset]:
    """Return the first blocks for training and the last ``fraction`` of them, at least one, for evaluation.

    Raises:
        TrainingInputError: there are fewer than two blocks.
    """
    if len(blocks) < 2:
        raise TrainingInputError(
            f"the data set makes {len(blocks)} sequence(s) of {blocks.block_size} tokens, but one to train "
            "on and one to evaluate on are needed; give more text or lower --block_size"
        )
    held_out = min(len(blocks) - 1, max(1, round(len(blocks) * fraction)))
    border = len(blocks) - held_out
    return Subset(blocks, range(border)), Subset(blocks, range(border, len(blocks)))


@dataclass(frozen=True)
class TrainingData:
    """Sequences to train and evaluate on.

    Attributes:
        train: blocks of token ids.
        evaluation: the same, not trained on.
        tokens_per_byte: of the training text; turns nats per token into nats per byte.
        block_size: tokens per sequence.
    """

    train: Dataset
    evaluation: Dataset
    tokens_per_byte: float
    block_size: int


def load_data(
    *,
    train_file: str | None,
    validation_file: str | None,
    text_column: str,
    stdlib_bytes: int,
    validation_fraction: float,
    max_eval_blocks: int,
    block_size: int,
    tokenizer: PreTrainedTokenizerBase,
) -> TrainingData:
    """Read, tokenize, pack and split the text that the arguments of the same names ask for.

    Raises:
        TrainingInputError: the text cannot be read or is too short.
    """
    if train_file is None:
        documents = standard_library(stdlib_bytes)
    else:
        documents = read_documents(Path(train_file), text_column)
    text = tokenize(documents, tokenizer)
    blocks = PackedBlocks(text, block_size)
    if validation_file is None:
        train, evaluation = split_blocks(blocks, validation_fraction)
    else:
        held_out_text = tokenize(read_documents(Path(validation_file), text_column), tokenizer)
        held_out = PackedBlocks(held_out_text, block_size)
        for flag, part in (("--train_file", blocks), ("--validation_file", held_out)):
            if len(part) == 0:
                raise TrainingInputError(
                    f"{flag} is shorter than one sequence of {block_size} tokens; give more text or lower "
                    "--block_size"
                )
        train, evaluation = Subset(blocks, range(len(blocks))), Subset(held_out, range(len(held_out)))
    if max_eval_blocks:
        evaluation = Subset(evaluation, range(min(max_eval_blocks, len(evaluation))))
    return TrainingData(train, evaluation, text.num_tokens / text.num_bytes, block_size)
