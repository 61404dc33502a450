"""What the garbage collector frees in some thread is freed on the device that this process uses.

Python collects garbage in whichever thread allocates next: in a progress bar's, a log writer's, in the hang
watch's. A thread that has set no device works on device 0, and torch_npu (2.13, NPUFunctions.cpp: GetDevice)
makes a context there for an event that is freed. Each rank then takes memory of the first card, and the next
backward of a rank on another card ends in abort(): the autograd engine returns to the stream of every device
with a context, and there may be none yet (NPUStream.cpp, "Uninitialized default NPU stream for device", in
NPUGuardImpl::exchangeStream, which is noexcept).
"""

from __future__ import annotations

import atexit
import gc
import threading
from types import ModuleType
from typing import Any


class CollectionsOnDevice:
    """A callback of the garbage collector that lends threads without a device that of the process.

    Args:
        torch_npu: the module torch_npu; its `_C` is asked, since `torch.npu` would begin to use a device.
    """

    def __init__(self, torch_npu: ModuleType) -> None:
        self._torch_npu: Any = torch_npu
        self._main = threading.main_thread().ident
        self._lent = threading.local()

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Lend a device when a collection begins ("start"), and take it back when it ends ("stop")."""
        if threading.get_ident() == self._main or not self._torch_npu.npu.is_initialized():
            return
        if phase == "start":
            self._lent.instead_of = self._lend()
        elif getattr(self._lent, "instead_of", None) is not None:
            self._torch_npu._C._npu_maybeExchangeDevice(self._lent.instead_of)
            self._lent.instead_of = None

    def _lend(self) -> int | None:
        """Let this thread work on the first device in use; returns its own, None if that is in use itself."""
        npu = self._torch_npu._C
        own: int = npu._npu_getDevice()
        in_use = npu._npu_hasPrimaryContext
        if in_use(own):
            return None
        for device in range(npu._npu_getDeviceCount()):
            if in_use(device):
                npu._npu_maybeExchangeDevice(device)
                return own
        return None


def collect_on_device(torch_npu: ModuleType) -> None:
    """Let the garbage collector work on the process's device until torch_npu shuts down.

    Call it after the import of torch_npu: what is registered last with atexit runs first.
    """
    callback = CollectionsOnDevice(torch_npu)
    gc.callbacks.append(callback)
    atexit.register(gc.callbacks.remove, callback)
