"""What the data flags refuse, and their defaults by task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hf_integration.data.arguments import DataArguments
from hf_integration.errors import TrainingInputError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "sft"}, "--task sft needs records; name them with --train_file FILE.jsonl"),
        ({"chat_template": "a"}, "--chat_template a is for --task sft"),
        ({"long_sequences": "drop"}, "--long_sequences drop is for --task sft"),
        ({"task": "sft", "train_file": "FILE", "chat_template": "nowhere"}, "nowhere is no file"),
        ({"task": "sft", "train_file": "FILE", "packing": "stream"}, "--packing stream would cut through"),
        ({"pad_to_multiple_of": 8}, "--pad_to_multiple_of has no effect with --packing stream"),
        ({"packing": "none", "pad_to_multiple_of": 0}, "--pad_to_multiple_of must be at least 1, got 0"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("{}", encoding="utf-8")
    given = {key: str(file) if value == "FILE" else value for key, value in values.items()}
    with pytest.raises(TrainingInputError, match=message):
        DataArguments(**given)


def test_packing_by_task(tmp_path: Path) -> None:
    records = {"task": "sft", "train_file": str(tmp_path)}
    assert DataArguments().row_packing == "stream"
    assert DataArguments(**records).row_packing == "none"
    packed = [
        name for name in ("none", "sequential", "best_fit") if DataArguments(packing=name).packs_documents
    ]
    assert packed == ["sequential", "best_fit"]
