"""Folders that the ranks of a test share."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any


def shared_folder(mesh: Any) -> Path:
    """A new folder that all ranks know."""
    import torch.distributed as dist

    name = [tempfile.mkdtemp() if mesh.global_rank == 0 else None]
    dist.broadcast_object_list(name, src=0, device=mesh.device)
    assert name[0] is not None
    return Path(name[0])


def content(directory: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
