"""What the tests of the training program share, and its import on simulated NPUs.

Simulated where torch_npu is installed without CANN: transformers imports it wherever it finds it. The
variables that turn the simulator on are taken back after the import, so that tests elsewhere find the
environment they were started with.
"""

from __future__ import annotations

from unittest import mock

from tests.harness.npu import rank_environment

with mock.patch.dict("os.environ", rank_environment()):
    import hf_integration.job  # noqa: F401

from tests.hf_integration.starting import in_one_process, start

__all__ = ["in_one_process", "start"]
