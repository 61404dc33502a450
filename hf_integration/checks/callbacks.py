"""The checks as callbacks of the Trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_integration.device import platform_label
from npu_plugins.diagnostics.consistency import Outcome, check_gradients, check_parameters, raise_together
from npu_plugins.diagnostics.consistency.holdings import zero_stage
from npu_plugins.diagnostics.memory import RankMemory, measure_memory, memory_of_all, memory_report
from npu_plugins.diagnostics.nonfinite import NonFiniteFinder
from npu_plugins.diagnostics.records import append_record, start_records


class _OfTrainer(TrainerCallback):
    """A callback that knows what its Trainer trains."""

    def __init__(self, trainer: Any = None) -> None:
        """Take the Trainer; None: the model that callbacks are given, all ranks being replicas."""
        self._trainer = trainer

    def _subject(self, model: Any) -> Any:
        """Return the engine, wrapped or bare model."""
        if self._trainer is None:
            return model
        return self._trainer.deepspeed or self._trainer.model_wrapped

    @property
    def _mesh(self) -> Any:
        return getattr(self._trainer, "mesh", None)


class CheckGradients(_OfTrainer):
    """Compares, every `every` steps, what ranks must hold alike; see `npu_plugins.diagnostics.consistency`.

    Parameters are compared when training begins, too, and after each of these steps; gradients before the
    step. With ZeRO, which divides the gradients, parameters alone are compared. Each check is a line of
    ``output_dir/checks/gradients.jsonl`` or ``parameters.jsonl``.

    Raises:
        InconsistentRanksError: on every rank, where ranks differ.
    """

    def __init__(self, every: int, trainer: Any = None) -> None:
        """Take the number of steps, and an `NpuTrainer`.

        With plain Trainer gradients are compared after clipping, where one that differs has spread to all.
        """
        super().__init__(trainer)
        self._every = every
        self._checked = -1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compare the parameters that training begins with."""
        self._checked = -1
        if state.is_world_process_zero:
            start_records(args.output_dir, "gradients", state.global_step)
            start_records(args.output_dir, "parameters", state.global_step)
        self._parameters(args, state, kwargs["model"])

    def on_reduced_gradients(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compare gradients before they are clipped."""
        step = state.global_step + 1
        subject = self._subject(kwargs["model"])
        if step % self._every or zero_stage(subject) or self._checked == step:
            return
        self._checked = step
        self._settle(args, state, check_gradients(subject, self._mesh, step=step))

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Do so now, if the Trainer is one that knows no moment before clipping."""
        if self._trainer is None:
            self.on_reduced_gradients(args, state, control, **kwargs)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compare the parameters that the step has made."""
        if state.global_step % self._every == 0:
            self._parameters(args, state, kwargs["model"])

    def _parameters(self, args: TrainingArguments, state: TrainerState, model: Any) -> None:
        outcome = check_parameters(self._subject(model), self._mesh, step=state.global_step)
        self._settle(args, state, outcome)

    def _settle(self, args: TrainingArguments, state: TrainerState, outcome: Outcome) -> None:
        if state.is_world_process_zero:
            append_record(args.output_dir, outcome.what, outcome.plain())
        raise_together(outcome)


class CheckMemory(_OfTrainer):
    """Prints, every `every` steps, what each rank takes of its device, and which ranks take more and why.

    Each check is a line of ``output_dir/checks/memory.jsonl`` too. Peaks are those of the run so far.
    """

    def __init__(self, every: int, trainer: Any = None) -> None:
        """Take the number of steps, and an `NpuTrainer`."""
        super().__init__(trainer)
        self._every = every
        self._with_gradients: RankMemory | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin the records."""
        if state.is_world_process_zero:
            start_records(args.output_dir, "memory", state.global_step)

    def on_reduced_gradients(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure while the gradients are there."""
        if (state.global_step + 1) % self._every == 0 and self._with_gradients is None:
            self._with_gradients = self._measured(args, kwargs)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Do so now, if the Trainer is one that knows no earlier moment."""
        self.on_reduced_gradients(args, state, control, **kwargs)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure once the optimizer's states are there, and report."""
        before, self._with_gradients = self._with_gradients, None
        if state.global_step % self._every or before is None:
            return
        mine = self._measured(args, kwargs)
        ranks = memory_of_all(replace(mine, gradients=max(mine.gradients, before.gradients)))
        if state.is_world_process_zero:
            simulated = platform_label(args.device.type).startswith("simulated")
            print(memory_report(ranks, step=state.global_step, simulated=simulated), flush=True)
            record = {
                "step": state.global_step,
                "simulated": simulated,
                "ranks": [each.plain() for each in ranks],
            }
            append_record(args.output_dir, "memory", record)

    def _measured(self, args: TrainingArguments, given: dict[str, Any]) -> RankMemory:
        subject = self._subject(given["model"])
        optimizer = getattr(subject, "optimizer", None) or given.get("optimizer")
        return measure_memory(subject, optimizer, self._mesh, device=args.device)


class FindNonFinite(_OfTrainer):
    """Ends the run, on every rank, at the first step that makes nan or infinity, and names where it came up.

    Raises:
        NonFiniteError: before the optimizer's step, so that the parameters are those of the step before.
    """

    def __init__(self, trainer: Any = None) -> None:
        """Take an `NpuTrainer`."""
        super().__init__(trainer)
        self._finder: NonFiniteFinder | None = None
        self._watched: Any = None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to look."""
        subject = self._subject(kwargs["model"])
        if self._finder is None or self._watched is not subject:
            self._finder, self._watched = NonFiniteFinder(subject, self._mesh), subject
        self._finder.attach()

    def on_reduced_gradients(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Judge the step, and look at nothing until the next one."""
        if self._finder is None or not self._finder.attached:
            return
        by_engine = getattr(self._watched, "fp16_enabled", None)
        scaled = bool(args.fp16 or (callable(by_engine) and by_engine()))
        try:
            self._finder.check_step(step=state.global_step + 1, scaled=scaled)
        finally:
            self._finder.detach()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Do so now, if the Trainer is one that knows no earlier moment."""
        self.on_reduced_gradients(args, state, control, **kwargs)
