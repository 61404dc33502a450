"""Files in, documents or JSON lines out, read by ``datasets`` (memory-mapped, cached)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets

from hf_integration.errors import TrainingInputError

JSON_SUFFIXES = frozenset({".json", ".jsonl"})
TEXT_SUFFIXES = frozenset({".txt", ".text", ".md", ".rst", ".py"})


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


def refuse_empty(path: Path, files: list[str]) -> None:
    """Raise TrainingInputError if all ``files``, found at ``path``, are empty."""
    if all(Path(file).stat().st_size == 0 for file in files):
        raise TrainingInputError(f"{path} is empty; give a file with text in it")


@contextlib.contextmanager
def refusing_unreadable(path: Path) -> Iterator[None]:
    """Turn the errors of ``datasets`` on reading ``path`` into a TrainingInputError."""
    try:
        yield
    except (datasets.exceptions.DatasetGenerationError, UnicodeDecodeError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise TrainingInputError(f"{path} cannot be read as UTF-8 text or JSON lines: {reason}") from error


def read_documents(path: Path, text_column: str) -> datasets.Dataset:
    """Return the documents at ``path`` in a column ``text``: one per text file, one per JSON record.

    Raises:
        TrainingInputError: nothing is there, a file cannot be read, or a record lacks ``text_column``.
    """
    texts, jsons = find_files(path)
    refuse_empty(path, texts + jsons)
    found = []
    with refusing_unreadable(path):
        if texts:
            found.append(datasets.load_dataset("text", data_files=texts, sample_by="document", split="train"))
        if jsons:
            found.append(datasets.load_dataset("json", data_files=jsons, split="train"))
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
            "name the right one with --text_column, or train on conversations with --task sft"
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


@dataclass(frozen=True)
class Places:
    """Where the lines of several files, read as one, stand.

    Attributes:
        files: the files in order.
        counts: how many lines each has.
    """

    files: tuple[str, ...]
    counts: tuple[int, ...]

    def __getitem__(self, index: int) -> str:
        """Return in words where line ``index`` of all stands: ``line 3 of FILE``."""
        for file, count in zip(self.files, self.counts, strict=True):
            if index < count:
                return f"line {index + 1} of {file}"
            index -= count
        raise IndexError(f"there are only {sum(self.counts)} lines")


@dataclass(frozen=True)
class JsonLines:
    """The lines of JSON files, not yet parsed, so that one with other fields than the rest does no harm.

    Attributes:
        lines: every line of every file in order, in a column ``text``.
        places: where each stands.
    """

    lines: datasets.Dataset
    places: Places


def read_json_lines(path: Path) -> JsonLines:
    """Return the lines of the JSON file ``path``, or of those in a directory, searched recursively.

    Raises:
        TrainingInputError: there is no JSON file, all are empty, or one is no UTF-8.
    """
    _, files = find_files(path)
    if not files:
        raise TrainingInputError(
            f"{path} is or holds no file that ends in {' or '.join(sorted(JSON_SUFFIXES))}, which --task sft "
            "reads; write one JSON record a line into such a file"
        )
    refuse_empty(path, files)
    files = [file for file in files if Path(file).stat().st_size]
    with refusing_unreadable(path):
        parts = [datasets.load_dataset("text", data_files=[file], split="train") for file in files]
    places = Places(tuple(files), tuple(len(part) for part in parts))
    return JsonLines(datasets.concatenate_datasets(parts), places)
