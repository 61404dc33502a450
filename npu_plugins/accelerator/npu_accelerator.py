"""DeepSpeed's NPU accelerator, mended where 0.19.8 lacks or misstates what a card does."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from deepspeed.accelerator.npu_accelerator import NPU_Accelerator

from npu_plugins.accelerator import environment
from npu_plugins.errors import NpuUnavailableError

OP_BUILDER_PACKAGE = "npu_plugins.accelerator.op_builders"
MSTX_DEFAULT_DOMAIN = "default"

logger = logging.getLogger(__name__)


def require_torch_npu() -> None:
    """Import torch_npu, which makes `torch.npu`; raises NpuUnavailableError with the way out."""
    try:
        importlib.import_module("torch_npu")
    except NpuUnavailableError:
        raise
    except ModuleNotFoundError as error:
        if error.name != "torch_npu":
            raise
        raise NpuUnavailableError(
            "torch_npu is not installed: install the torch_npu that belongs to your torch "
            f"{torch.__version__} and CANN, or set DS_ACCELERATOR=cpu to do without NPUs."
        ) from error
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NpuUnavailableError(
            f"torch_npu cannot be loaded ({reason}): source CANN's set_env.sh, or set NPU_SIM=<number> to "
            "simulate that many NPUs."
        ) from error


class NpuAccelerator(NPU_Accelerator):
    """What DeepSpeed asks of a device, answered by torch_npu.

    It calls only what torch_npu has, so it serves whatever stands behind `torch.npu`.
    Memory sizes are bytes. A `device_index` of None means the current device.
    """

    supports_nvtx_domain = True  # mstx domains take the place of NVTX's

    def __init__(self) -> None:
        require_torch_npu()
        super().__init__()
        self._warned_of_variables = False

    # Devices

    def device_count(self) -> int:
        """Number of visible NPUs; warns once if a variable was set that does not choose NPUs."""
        count = int(torch.npu.device_count())
        if not self._warned_of_variables and environment.is_first_local_rank():
            self._warned_of_variables = True
            warning = environment.mistaken_device_variables(os.environ, count)
            if warning is not None:
                logger.warning(warning)
        return count

    def visible_devices_envs(self) -> list[str]:
        """The variables that choose NPUs, most important first."""
        return [environment.VISIBLE_DEVICES]

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        """Restrict a child process, whose environment is `current_env`, to these NPUs."""
        environment.set_visible_devices(current_env, local_accelerator_ids)

    def export_envs(self) -> list[str]:
        """Prefixes of the variables that DeepSpeed's runner copies to the other nodes."""
        return list(environment.EXPORTED_PREFIXES)

    # Random numbers

    def default_generator(self, device_index: int) -> torch.Generator:
        """The generator of a device. torch_npu makes the generators when it initializes, so do that first."""
        torch.npu.init()
        return torch.npu.default_generators[device_index]

    # Memory

    def available_memory(self, device_index: int | None = None) -> int:
        """Bytes this process can still allocate on a device.

        What the device has free, whoever uses the rest, plus what torch_npu caches unused for this process.
        """
        free, _ = torch.npu.mem_get_info(device_index)
        cached = torch.npu.memory_reserved(device_index) - torch.npu.memory_allocated(device_index)
        return int(free) + int(cached)

    def total_memory(self, device_index: int | None = None) -> int:
        """Bytes of memory of a device."""
        return int(torch.npu.mem_get_info(device_index)[1])

    def memory_cached(self, device_index: int | None = None) -> int:
        """Bytes held by torch_npu's caching allocator (torch's old name of `memory_reserved`)."""
        return int(torch.npu.memory_reserved(device_index))

    def max_memory_cached(self, device_index: int | None = None) -> int:
        """Peak of `memory_cached`."""
        return int(torch.npu.max_memory_reserved(device_index))

    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        """Start all peak statistics anew; torch has no reset of a single one any more."""
        torch.npu.reset_peak_memory_stats(device_index)

    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        """Start all peak statistics anew; torch has no reset of a single one any more."""
        torch.npu.reset_peak_memory_stats(device_index)

    # Data types

    def is_fp64_supported(self) -> bool:
        """False: HCCL reduces no fp64 on any chip, and DeepSpeed all-reduces its norms in fp64 if it may."""
        return False

    def supported_dtypes(self) -> list[torch.dtype]:
        """Dtypes a model may have; bf16 from Ascend 910B on, as torch_npu tells by the chip."""
        dtypes = [torch.float, torch.half]
        if self.is_bf16_supported():
            dtypes.append(torch.bfloat16)
        return dtypes

    # Profiling and graphs

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> int | None:
        """Open a range in the profiler's timeline; nearly free while no profiler listens.

        mstx has no categories, so one is put before the message. Returns the depth, -1 with no profiler.
        """
        text = f"{category}: {msg}" if category else msg
        return torch.npu.mstx.range_push(text, domain=domain or MSTX_DEFAULT_DOMAIN)

    def range_pop(self, domain: str | None = None) -> int | None:
        """Close the innermost range of a domain. Returns the depth, -1 with no profiler."""
        return torch.npu.mstx.range_pop(domain or MSTX_DEFAULT_DOMAIN)

    def is_current_stream_capturing(self) -> bool:
        """True while the current stream records a graph."""
        return bool(torch.npu.is_current_stream_capturing())

    def lazy_call(self, callback: Callable[[], Any]) -> None:
        """Run `callback` when torch_npu initializes, or now if it has."""
        torch.npu._lazy_call(callback)

    # Ops

    def op_builder_dir(self) -> str:
        """The package of our op builders."""
        return OP_BUILDER_PACKAGE

    def get_op_builder(self, class_name: str) -> type:
        """The builder class of this name; one that raises on `load`, naming the op, for what NPUs lack."""
        package = importlib.import_module(OP_BUILDER_PACKAGE)
        if class_name in package.__all__:
            return getattr(package, class_name)
        return package.NotImplementedBuilder.of(class_name)

    def create_op_builder(self, class_name: str) -> Any:
        """An instance of the builder of this name."""
        return self.get_op_builder(class_name)()
