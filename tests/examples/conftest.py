"""The examples are programs as those of `hf_integration`, and need what its tests need before transformers."""

from __future__ import annotations

import tests.hf_integration.conftest  # noqa: F401
