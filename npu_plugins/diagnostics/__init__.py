"""What is wrong with this machine, this job, this rank: found, named, and told with its mend."""

from __future__ import annotations

from npu_plugins.diagnostics.errors import DiagnosticsError

__all__ = ["DiagnosticsError", "watch_for_hangs"]


def watch_for_hangs() -> None:
    """Start the hang watch of this process, which launched ranks have by themselves; again does nothing.

    For programs that start their ranks on their own, as with torch.multiprocessing.spawn: call it at the
    start of each, before or after the process group is made. For a ring of the last calls set
    TORCH_FR_BUFFER_SIZE (gloo) and TORCH_HCCL_TRACE_BUFFER_SIZE (HCCL) before the first process group; this
    function does so where that is still to come. NPU_PLUGINS_HANG_WATCH=0 keeps it from starting.

    Raises:
        DiagnosticsError: NPU_PLUGINS_HANG_WATCH or NPU_PLUGINS_RING is no such setting.
        CommError: HCCL_TIMEOUT is no time.
    """
    import os

    from npu_plugins.diagnostics.hang.recorder import apply_ring_setting
    from npu_plugins.diagnostics.hang.watch import start_watch

    apply_ring_setting(os.environ)
    start_watch()
