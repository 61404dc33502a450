"""The faults that are put into a training, each as a `Job` of which one rank goes wrong at one step."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import nn

from tests.diagnostics.faults.training import Job

VICTIM = 1
AT = 3  # the step; before it all ranks have trained together
FOR_EVER = 3600.0
BIT = 20  # of a float32: in the upper part of the mantissa


class Faulty(Job):
    """A job that knows whether its fault is to happen now."""

    @property
    def is_time(self) -> bool:
        """Whether this is the rank and the step; if so, the log says when that was."""
        now = self.rank == VICTIM and self.step == AT
        if now:
            print(f"fault at {time.time():.3f}", flush=True)
        return now


class Sleeps(Faulty):
    """One rank waits for data that do not come."""

    def load(self) -> torch.Tensor:
        """Load them."""
        if self.is_time:
            read_slow_disk()
        return super().load()


def read_slow_disk() -> None:
    """Take for ever, in the user's own code."""
    time.sleep(FOR_EVER)


class NeverEnters(Faulty):
    """One rank has fewer batches than the others: it ends its loop, and the program, in peace."""

    def is_over(self) -> bool:
        """End early."""
        return self.is_time or super().is_over()


class WrongShape(Faulty):
    """One rank reports a figure more."""

    def report(self, loss: torch.Tensor) -> None:
        """Reduce three figures where the others reduce two."""
        if not self.is_time:
            super().report(loss)
            return
        dist.all_reduce(torch.ones(3, device=self.device))


class WrongOrder(Faulty):
    """One rank broadcasts before it reduces."""

    def report(self, loss: torch.Tensor) -> None:
        """Do the two the other way round."""
        if not self.is_time:
            super().report(loss)
            return
        dist.broadcast(torch.full((3,), 1e-2, device=self.device), 0)
        dist.all_reduce(torch.ones(2, device=self.device))


class WrongDtype(Faulty):
    """One rank reports whole numbers."""

    def report(self, loss: torch.Tensor) -> None:
        """Reduce int32 where the others reduce float32."""
        if not self.is_time:
            super().report(loss)
            return
        dist.all_reduce(torch.ones(2, dtype=torch.int32, device=self.device))


class Killed(Faulty):
    """One rank is killed, as by the kernel when the host's memory is full."""

    def load(self) -> torch.Tensor:
        """Load until the end."""
        if self.is_time:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load()


class OutOfMemory(Faulty):
    """One rank keeps more and more on its device."""

    def load(self) -> torch.Tensor:
        """Load too much."""
        if self.is_time:
            hoard(self.device)
        return super().load()


def hoard(device: str) -> None:
    """Fill the device's memory; what is asked for is never written, so that the host has no use of it."""
    if device == "cpu":
        torch.empty(sys.maxsize // 16, dtype=torch.uint8)  # a CPU has all addresses: one piece beyond them
    total = torch.npu.get_device_properties(device).total_memory
    kept: list[torch.Tensor] = []
    while len(kept) < 9:
        kept.append(torch.empty(total // 8, dtype=torch.uint8, device=device))
    raise AssertionError("nine eighths of the memory could be had")


class BitFlipped(Faulty):
    """One bit of one gradient is flipped on one rank, after the reduction."""

    def check(self, model: nn.Module) -> None:
        """Flip it, and let all ranks compare their gradients."""
        from npu_plugins.diagnostics.consistency import check_gradients, raise_together

        if self.is_time:
            gradient = model.module.layers[1].up.weight.grad
            words = gradient.view(torch.int32)
            words[5, 7] ^= 1 << BIT
        raise_together(check_gradients(model, step=self.step))


class NanInLayer(Faulty):
    """A layer of one rank divides zero by zero in one element; all ranks look for what is not finite."""

    def prepare(self, model: nn.Module) -> None:
        """Let the layer do that, and attach the finder."""
        from npu_plugins.diagnostics.nonfinite import NonFiniteFinder

        model.layers[1].up.register_forward_hook(self.spoil)
        self.finder = NonFiniteFinder(model).attach()

    def spoil(
        self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        """Return the layer's output, with the division in it."""
        if not self.is_time:
            return output
        scale = torch.ones_like(output)
        scale[1, 2, 3] = 0.0
        return output * scale / scale

    def check(self, model: nn.Module) -> None:
        """End the step for the finder."""
        self.finder.check_step(step=self.step)


FAULTS = MappingProxyType(
    {
        "sleeps": Sleeps,
        "never_enters": NeverEnters,
        "wrong_shape": WrongShape,
        "wrong_order": WrongOrder,
        "wrong_dtype": WrongDtype,
        "killed": Killed,
        "out_of_memory": OutOfMemory,
        "bit_flipped": BitFlipped,
        "nan_in_layer": NanInLayer,
    }
)
