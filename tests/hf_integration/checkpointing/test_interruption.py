"""SIGTERM is noted while training, and what it did before comes back afterwards."""

from __future__ import annotations

import logging
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import TrainerControl, TrainerState

from hf_integration.checkpointing.interruption import Interruption, let_workers_outlive_sigterm

ARGS: Any = SimpleNamespace(device=torch.device("cpu"), world_size=1)


def after_step(interruption: Interruption) -> TrainerControl:
    """Return what a step that was to be evaluated ends with."""
    control = TrainerControl(should_evaluate=True)
    interruption.on_step_end(ARGS, TrainerState(), control)
    return control


def test_step_in_which_the_signal_comes_is_saved_and_is_the_last() -> None:
    interruption = Interruption(enabled=True)
    with interruption.listening():
        before = after_step(interruption)
        assert (before.should_save, before.should_training_stop) == (False, False)
        assert before.should_evaluate
        signal.raise_signal(signal.SIGTERM)
        stopped = after_step(interruption)
        assert (stopped.should_save, stopped.should_training_stop) == (True, True)
        assert not stopped.should_evaluate, "no time for it"
    assert interruption.stopped


def test_next_training_starts_anew() -> None:
    interruption = Interruption(enabled=True)
    with interruption.listening():
        signal.raise_signal(signal.SIGTERM)
        after_step(interruption)
    with interruption.listening():
        assert not after_step(interruption).should_training_stop
    assert not interruption.stopped


@pytest.mark.parametrize("enabled", [True, False])
def test_what_the_signal_did_before_comes_back(enabled: bool) -> None:
    heard: list[int] = []
    outer = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    interruption = Interruption(enabled)
    try:
        with pytest.raises(ZeroDivisionError), interruption.listening():
            raise ZeroDivisionError
        signal.raise_signal(signal.SIGTERM)
        with interruption.listening():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, outer)
    assert len(heard) == (1 if enabled else 2)


def test_training_in_a_thread_says_that_it_hears_no_signals(caplog: pytest.LogCaptureFixture) -> None:
    interruption = Interruption(enabled=True)

    def train() -> None:
        with interruption.listening():
            after_step(interruption)

    with caplog.at_level(logging.WARNING):
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert "call train() in the main thread" in caplog.text
    assert not interruption.stopped


def first_handler(_: Any) -> int:
    """Return whether this process ignores SIGTERM."""
    return int(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)


def note_start(worker: int) -> None:
    """Leave a mark in the worker."""
    torch.set_num_threads(3)


def test_workers_of_a_loader_ignore_the_signal_and_start_as_they_were_told() -> None:
    def seen(batch: list[int]) -> tuple[int, int]:
        return first_handler(batch), torch.get_num_threads()

    loader = DataLoader([0, 1], num_workers=1, collate_fn=seen, worker_init_fn=note_start)
    let_workers_outlive_sigterm(loader)
    let_workers_outlive_sigterm(loader)
    assert list(loader) == [(1, 3), (1, 3)]
    assert loader.worker_init_fn.before is note_start
