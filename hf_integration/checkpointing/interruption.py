"""SIGTERM while training: all ranks save after the same step and stop, so that the run can go on later."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Interruption(TrainerCallback):
    """Ends training at the next step's end once any rank has got SIGTERM, with a checkpoint of that step.

    The Trainer's own ``enable_jit_checkpoint`` (transformers 5.24) decides on each rank by itself, seconds
    after the signal and before the optimizer's step, so ranks would save different steps, or wait for ever.
    Here the ranks ask each other after every step, with one number (as they do for the gradient's norm): a
    launcher may signal only some of them, or one after the other.

    An evaluation that is due at that step is left out, since what sent the signal will soon send another one.
    """

    def __init__(self, enabled: bool) -> None:
        """Say whether the signal is listened to at all; the same on every rank."""
        self.enabled = enabled
        self.stopped = False
        """Whether training has ended so."""
        self._signalled = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within: SIGTERM is noted here, in place of what it did before."""
        self.stopped = self._signalled = False
        if not self.enabled:
            yield
            return
        if threading.current_thread() is not threading.main_thread():
            logging.getLogger(__name__).warning(
                "training runs in a thread, where Python hears no signals: SIGTERM of this process is not "
                "noted; call train() in the main thread"
            )
            yield
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            # None: a handler that was not installed from Python, which cannot be put back from here.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    def _note(self, number: int, frame: Any) -> None:
        self._signalled = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask all ranks; save and stop if one was told to."""
        if self.enabled and not self.stopped and self._anyone(args.device, args.world_size):
            self.stopped = True
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Do nothing more: the step has been saved."""
        if self.stopped:
            control.should_save = control.should_evaluate = False

    def _anyone(self, device: torch.device, ranks: int) -> bool:
        if ranks == 1:
            return self._signalled
        told = torch.tensor(int(self._signalled), dtype=torch.int32, device=device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return bool(told)


def let_workers_outlive_sigterm(loader: DataLoader) -> None:
    """Make the loader's worker processes, if it has any, ignore SIGTERM; they end with their rank.

    The deepspeed launcher (0.19.8) signals a rank's children as well, and a rank whose worker has died of it
    raises an error before it could save.
    """
    # A script may give the Trainer any iterable for a loader.
    if getattr(loader, "num_workers", 0) and not isinstance(loader.worker_init_fn, _Deaf):
        loader.worker_init_fn = _Deaf(loader.worker_init_fn)


@dataclass(frozen=True)
class _Deaf:
    """Starts a worker that ignores SIGTERM."""

    before: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.before is not None:
            self.before(worker)
