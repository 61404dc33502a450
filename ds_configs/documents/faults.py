"""What is wrong with a file as text, before anything is known of its keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from ds_configs.documents.text import Edit


@dataclass(frozen=True)
class Fault:
    """One place that is not JSON.

    ``kind`` is one of the names that `ds_configs/lint/codes.json` lists under "fault". DeepSpeed reads Hjson
    and HF strict JSON, so a fault may stop one and not the other: ``deepspeed`` says whether DeepSpeed
    refuses the file for it or reads something else than what is written.
    """

    kind: str
    start: int
    end: int
    reason: str
    mend: str
    edits: tuple[Edit, ...] = field(default=())
    """What makes the place JSON."""
    safe: bool = True
    """Whether the edits keep what the writer meant; else they only help to read on."""
    deepspeed: bool = True
