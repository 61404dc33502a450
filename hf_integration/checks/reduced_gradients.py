"""An event of the Trainer's callbacks that transformers lacks: gradients are reduced, and not yet clipped."""

from __future__ import annotations

from typing import Any

from accelerate.utils import DeepSpeedEngineWrapper
from transformers import Trainer

EVENT = "on_reduced_gradients"
"""Name of the method of callbacks: ``(args, state, control, model=…)``."""


class ReducedGradients(Trainer):
    """Calls callbacks' ``on_reduced_gradients`` on every rank, once a step, before the gradients are used.

    The Trainer's ``on_pre_optimizer_step`` comes after clipping, which spreads what is wrong with one
    gradient over all of them, and under DeepSpeed after the engine's step. Without a callback that has the
    method, nothing is done.
    """

    def _announces(self) -> bool:
        return any(hasattr(each, EVENT) for each in self.callback_handler.callbacks)

    def announce_gradients(self) -> None:
        """Call the callbacks."""
        for each in self.callback_handler.callbacks:
            if hasattr(each, EVENT):
                getattr(each, EVENT)(self.args, self.state, self.control, model=self.model_wrapped)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on a batch; without DeepSpeed, the gradients are reduced after the last one of a step."""
        loss = super().training_step(*args, **kwargs)
        by_engine = self.is_deepspeed_enabled or self.deepspeed is not None
        if not by_engine and self.accelerator.sync_gradients and self._announces():
            self.announce_gradients()
        return loss

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._prepare_for_training(*args, **kwargs)
        wrapped = getattr(self.accelerator, "deepspeed_engine_wrapped", None)
        if wrapped is not None and self._announces() and not isinstance(wrapped.engine, AnnouncingEngine):
            engine: Any = AnnouncingEngine(wrapped.engine, self)
            self.accelerator.deepspeed_engine_wrapped = DeepSpeedEngineWrapper(engine)
        return result

    def watch_engine(self, engine: Any) -> None:
        """Let the engine of a divided model announce its gradients."""
        owner = engine if hasattr(engine, "before_step") else self.accelerator
        owner.before_step = self.announce_gradients


class AnnouncingEngine:
    """DeepSpeed's engine, for accelerate's wrapper of it, which steps right after the backward pass."""

    def __init__(self, engine: Any, trainer: ReducedGradients) -> None:
        """Take the engine, and who is told."""
        self._engine, self._trainer = engine, trainer

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Announce, then step."""
        self._trainer.announce_gradients()
        return self._engine.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """All else is the engine's."""
        return getattr(self._engine, name)
