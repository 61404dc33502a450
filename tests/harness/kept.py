"""What a test wants a rank to keep between calls; every rank is a process with a dict of its own."""

from __future__ import annotations

from typing import Any

kept: dict[str, Any] = {}
