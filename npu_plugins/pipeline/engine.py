"""DeepSpeed's `PipelineEngine` that runs any schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.pipe.engine import TRAIN_BATCH_TIMER
from deepspeed.runtime.pipe.engine import PipelineEngine as DeepSpeedPipelineEngine
from deepspeed.runtime.torch_autocast import autocast_if_enabled
from torch.utils._pytree import tree_map_only

from npu_plugins.comm import clip_grad_norm_
from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.pipeline import batches
from npu_plugins.pipeline.checkpoints.engine import EngineCheckpoints
from npu_plugins.pipeline.config import PipelineConfig
from npu_plugins.pipeline.engine_checks import check_optimizer, check_settings
from npu_plugins.pipeline.errors import PipelineError, StageError
from npu_plugins.pipeline.executor import Executor, Failure, Job, gradients_enabled
from npu_plugins.pipeline.gradients import (
    clip_scaled_gradients,
    complete_gradients,
    fold_gradients,
    gradient_of,
    own_clipping,
    restart_step_counts,
    scale_loss,
)
from npu_plugins.pipeline.losses import TOTAL, LossSum, split_loss
from npu_plugins.pipeline.module import PipelineModule
from npu_plugins.pipeline.p2p import Transport
from npu_plugins.pipeline.roll_call import RollCall
from npu_plugins.pipeline.same_batches import differing, explain, fingerprints
from npu_plugins.pipeline.schedules import Schedule, add_communication
from npu_plugins.pipeline.schedules.evaluation import evaluation
from npu_plugins.pipeline.schedules.joined import join_halves
from npu_plugins.pipeline.schedules.registry import build_schedule
from npu_plugins.pipeline.split import defer_weight_gradients
from npu_plugins.pipeline.tied import reduce_tied_gradients
from npu_plugins.pipeline.trace import check_writable, write_trace
from npu_plugins.tensor_parallel.deferred import WeightGradients


class PipelineEngine(EngineCheckpoints, DeepSpeedPipelineEngine):
    """Trains a `PipelineModule` under any schedule; `deepspeed.initialize` returns it for one.

    Optimizer, precision, loss scaling, ZeRO-1, timers, monitors and checkpoint files are DeepSpeed's. What
    differs: the executor runs the step; a step's micro-batches are read before it begins; an error on one
    rank is raised on all of them, naming the stage; clipping in fp32 counts every stage.
    """

    module: PipelineModule
    _ready = False  # DeepSpeed's constructor asks for first and last stages by rank, whatever the placement

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        module = kwargs["model"]
        settings = PipelineConfig.from_ds_config(kwargs["config"])
        check_settings(settings, module, kwargs["config_class"])
        if settings.trace_steps:
            check_writable(Path(settings.trace_file), module.control)
        super().__init__(*args, **kwargs)
        check_optimizer(self)
        self.settings, self.mesh, self.control = settings, module.mesh, module.control
        self._schedules: dict[tuple[int, bool], Schedule] = {}
        self._loss_names = [TOTAL]
        self._losses = LossSum()
        self._logits: list[Any] = []
        self._batches: list[batches.MicroBatch] = []
        self._group = self.mesh.group("pp")
        self.before_step: Callable[[], None] | None = None
        """Called when the gradients of a step are reduced, before they are clipped and used."""
        own_clipping(self)
        restart_step_counts(self)
        self._last_rank = module.placement.rank_of[-1]
        self.roll_call = RollCall(self.control, self.control.timeout.total_seconds(), self._name_of)
        self._ready = True
        self._note_layout()
        self.store = WeightGradients()
        if self._train_schedule().splits_backward:
            defer_weight_gradients([module], self.store)
        self.executor = Executor(
            self.mesh.rank("pp"),
            Transport(self._group, self.mesh.device),
            self.control,
            self.mesh.device,
            self.store,
            dynamic_shape=module.dynamic_shape or settings.dynamic_shape,
        )

    # Places

    def is_first_stage(self) -> bool:
        """Whether this rank reads inputs."""
        return 0 in self.module.own_stages if self._ready else super().is_first_stage()

    def is_last_stage(self) -> bool:
        """Whether this rank computes the loss."""
        if not self._ready:
            return super().is_last_stage()
        return self.module.placement.stages - 1 in self.module.own_stages

    def _name_of(self, rank: int) -> str:
        """Return the name of a global rank in sentences."""
        stages = self.module.placement.stages_of(self.mesh.coordinate(rank).pp)
        return f"rank {rank} (stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))})"

    def _loss_stage_global_rank(self) -> int:
        return self.mesh.ranks("pp")[self._last_rank]

    def destroy(self) -> None:
        """Let go of what DeepSpeed's engine holds, and of the port."""
        if self._ready:
            self.roll_call.close()
        super().destroy()

    # One step

    def train_batch(self, data_iter: Any = None) -> torch.Tensor:
        """Train one batch, as DeepSpeed's `train_batch`; return its mean loss, on every rank.

        Args:
            data_iter: of micro-batches: pairs (inputs, labels), or dicts with the key ``"labels"``. Read by
                the ranks of the first and the last stage. None: what `set_dataiterator` got.

        Raises:
            StageError: on every rank, if one failed: its data ended, or an action raised. No step was taken.
            PeerLostError: another rank has ended or hangs; the job cannot go on.
            ScheduleError: the schedule does not exist for as many micro-batches as were set meanwhile.
        """
        self._train_schedule()  # refuses numbers before the timer runs
        try:
            with self.roll_call.watching():
                return super().train_batch(data_iter)
        except (PipelineError, DiagnosticsError):
            self.executor.spans = None
            self.timers(TRAIN_BATCH_TIMER).stop()
            raise

    def _train_schedule(self) -> Schedule:
        return self._schedule(self.micro_batches, training=True)

    def _inference_schedule(self, micro_batches: int) -> Schedule:
        return self._schedule(micro_batches, training=False)

    def _schedule(self, micro_batches: int, training: bool) -> Schedule:
        key = (micro_batches, training)
        if key not in self._schedules:
            module = self.module
            if training:
                compute = build_schedule(
                    module.schedule_name, module.num_stages, micro_batches, module.virtual_stages
                )
            else:
                compute = evaluation(module.placement, micro_batches)
            self._schedules[key] = add_communication(join_halves(compute))
        return self._schedules[key]

    def _exec_schedule(self, schedule: Schedule) -> None:
        """Run one step: DeepSpeed's `train_batch` calls this between its timers and its logging."""
        digests = self._begin(schedule.micro_batches)
        self._losses, self._logits = LossSum(), []
        self.fwd_outputs: list[Any] = []
        job = Job(self._forward, self._load, self._finish, self._fold)
        tracing = not schedule.forward_only and self.global_steps + 1 in self.settings.trace_steps
        if tracing:
            self.executor.spans = []
        with gradients_enabled(schedule):
            failure = self.executor.run(schedule, job, digests)
        self._batches = []
        self._agree(failure)
        if tracing:
            self._write_trace()
        if not schedule.forward_only:
            self.store.check_done()
            with torch.no_grad():
                reduce_tied_gradients(
                    self.module.tied.values(), lambda parameter: gradient_of(self, parameter)
                )
            self._exec_reduce_grads()
            if self.before_step is not None:
                self.before_step()
            self._exec_optimizer_step()

    def _begin(self, micro_batches: int) -> list[int]:
        """Read the step's micro-batches; return their digests, equal on all ranks of the pipeline.

        Raises:
            StageError: on every rank, if one has too few or something else than batches, or ranks of one
                replica have different ones.
        """
        error: Exception | None = None
        digests: list[int] = []
        if self.is_first_stage() or self.is_last_stage():
            try:
                self._batches = batches.read(self._next_batch, micro_batches, self.module.micro_batch)
                digests = batches.digests(self._batches) if self.is_first_stage() else []
            except Exception as caught:
                error = caught
        given = [] if error else self._batches
        worst, *prints = self.control.largest([int(error is not None), *fingerprints(given, self.mesh)])
        if not worst and differing(prints):
            worst, error = 1, explain(given, self.mesh, self.control)
        if worst:
            self._batches = []
            self._raise_together(error, "its data")
        return self.control.shared(digests, micro_batches, self.module.placement.rank_of[0])

    def _load(self, micro_batch: int) -> Any:
        inputs = batches.to_device(self._batches[micro_batch].inputs, self.device)
        return self._cast_inputs_half(inputs) if self.fp16_auto_cast() else inputs

    def _forward(self, stage: int, value: Any) -> Any:
        with autocast_if_enabled(self):
            return self.module.run_stage(stage, value)

    def _finish(self, output: Any, micro_batch: int) -> torch.Tensor | None:
        """Compute the loss of the last stage's output; return what its backward starts from."""
        if self.eval_return_logits:
            self._logits.append(output)
        if not self._compute_loss:
            self.fwd_outputs.append(output)
            return None
        if self.module.loss_fn is not None:
            labels = batches.to_device(self._batches[micro_batch].labels, self.device)
            with autocast_if_enabled(self):
                output = self.module.loss_fn(output, labels)
        losses = split_loss(output)
        losses |= self.module.get_additional_losses() or {}
        self._losses.add(losses)
        self.fwd_outputs.append(losses[TOTAL].detach())
        if not torch.is_grad_enabled():
            return None
        return scale_loss(self, losses[TOTAL] / self.gradient_accumulation_steps())

    def _fold(self) -> None:
        fold_gradients(self)

    def _agree(self, failure: Failure | None) -> None:
        """End the computation of a step on all ranks.

        Raises:
            StageError: on every rank, if an action failed on one.
        """
        names = list(self._losses.sums)
        new_names = bool(names) and names != self._loss_names
        verdict = self.control.worst(2 if failure else int(new_names))
        if verdict == 2:
            for place in self.store.pending:  # what failed half-way leaves no weight gradients behind
                self.store.run(*place)
            self.zero_grad()
            self._raise_together(failure.error if failure else None, str(failure.action) if failure else "")
        if verdict == 1:
            self._loss_names = self.control.of_pipeline(names)[self._last_rank]

    def _raise_together(self, error: Exception | None, where: str) -> None:
        told = ""
        if error is not None:
            stages = ", ".join(map(str, self.module.own_stages))
            told = f"rank {self.global_rank} (stage {stages}) at {where}: {type(error).__name__}: {error}"
        texts = [text for text in self.control.texts(told) if text]
        raise StageError(f"step {self.global_steps + 1} failed on {'; and on '.join(texts)}") from error

    def _write_trace(self) -> None:
        spans, self.executor.spans = self.executor.spans, None
        everyone = [span for each in self.control.of_pipeline(spans) for span in each]
        if self.global_rank == 0:
            write_trace(Path(self.settings.trace_file.format(step=self.global_steps + 1)), everyone)

    # Results

    def _aggregate_total_loss(self) -> torch.Tensor:
        means, self.dp_group_loss = self._losses.mean(
            self._loss_names, self.micro_batches, self.mesh, self._last_rank
        )
        loss = means.pop(TOTAL)
        self.agg_additional_losses = means or None
        return loss

    def eval_batch(
        self,
        data_iter: Any,
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """Evaluate one batch, as DeepSpeed's `eval_batch`, under any placement.

        Args:
            data_iter: of micro-batches.
            return_logits: whether the last stage's outputs are returned as well, on its rank: one output,
            or a
                list of them for several micro-batches (DeepSpeed returns the last one's only).
            compute_loss: whether the outputs become a loss.
            reduce_output: ``"avg"``: the mean over micro-batches and replicas; None: a list.
            bcast_loss: whether every rank of the pipeline gets it, not only the last stage's.
            num_micro_batches: by default as in training.

        Raises:
            StageError: as `train_batch`, on every rank.
            PeerLostError: as `train_batch`.
        """
        if reduce_output not in ("avg", None):
            raise StageError(f"reduce_output is {reduce_output!r}; choose 'avg' or None")
        self.module.eval()
        self._compute_loss, self.eval_return_logits = compute_loss, return_logits
        training_data = self.data_iterator
        self.data_iterator: Any = data_iter
        try:
            with self.roll_call.watching():
                count = self.micro_batches if num_micro_batches is None else num_micro_batches
                self._exec_schedule(self._inference_schedule(count))
        finally:
            self.data_iterator = training_data
            self.eval_return_logits = False
        result: Any = self._reduced(reduce_output) if self.is_last_stage() else None
        if compute_loss and reduce_output and (bcast_loss or self.monitor.enabled):
            result = self._bcast_pipe_scalar(result).reshape(())
        if self.global_rank == 0 and self.monitor.enabled and compute_loss:
            self.monitor.write_events(
                [("Train/Samples/eval_loss", result.mean().item(), self.global_samples)]
            )
        if not return_logits:
            return result
        logits: Any = self._logits[0] if len(self._logits) == 1 else self._logits or None
        self._logits = []
        return result, logits

    def _reduced(self, how: str | None) -> Any:
        if how is None:
            return self.fwd_outputs
        if not all(isinstance(output, torch.Tensor) for output in self.fwd_outputs):
            return tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), self.fwd_outputs)
        mean = sum(self.fwd_outputs) / len(self.fwd_outputs)
        if self.mesh.size("dp") > 1:
            torch.distributed.all_reduce(mean, group=self.mesh.group("dp"))
            mean /= self.mesh.size("dp")
        return mean

    # Optimizer

    def _exec_reduce_grads(self) -> None:
        if not complete_gradients(self):
            super()._exec_reduce_grads()

    def clip_fp32_gradients(self) -> None:
        """Clip by the norm of all stages' gradients; DeepSpeed 0.19.8 counts the first stage's alone."""
        self._global_grad_norm = clip_grad_norm_(
            self.module.parameters(), self.gradient_clipping(), self.mesh
        )

    def _take_model_step(self, lr_kwargs: Any) -> None:
        norm = clip_scaled_gradients(self)
        super()._take_model_step(lr_kwargs)
        if norm is not None:
            self._global_grad_norm = norm

    def get_additional_losses(self) -> Mapping[str, torch.Tensor] | None:
        """Return the other losses of the last `train_batch`, by name."""
        return self.agg_additional_losses
