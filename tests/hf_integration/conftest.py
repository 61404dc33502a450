"""Imports the training program once, on simulated NPUs where torch_npu is installed without CANN.

transformers imports torch_npu wherever it finds it. The variables that turn the simulator on are taken back
after the import, so that tests elsewhere find the environment they were started with.
"""

from __future__ import annotations

from unittest import mock

from tests.harness.npu import rank_environment

with mock.patch.dict("os.environ", rank_environment()):
    import hf_integration.job  # noqa: F401
