"""The examples are programs like those of `hf_integration`, and import transformers as its tests do."""

from __future__ import annotations

import tests.hf_integration.conftest  # noqa: F401
