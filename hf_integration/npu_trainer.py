"""`NpuTrainer`: the HF Trainer for models divided by tensor and pipeline parallelism."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DeepSpeedOptimizerWrapper, DeepSpeedSchedulerWrapper
from accelerate.utils.memory import clear_device_cache
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, set_seed

from hf_integration.checkpointing.trainer import CheckpointingTrainer
from hf_integration.checks import CheckGradients, CheckMemory, FindNonFinite, ReducedGradients
from hf_integration.divided_checkpoints import load_state
from hf_integration.engines import divide, engine_config, make_engine
from hf_integration.errors import TrainingInputError
from hf_integration.input_checks import InputChecks, check_tokenizer
from hf_integration.last_stage import LastStage, MicroBatch, loss_of
from hf_integration.lora import adapted, save_adapters, save_merged, save_merged_undivided
from hf_integration.measurements import Measurements
from hf_integration.mesh_accelerator import MeshAccelerator, apart
from hf_integration.parallel_settings import ParallelSettings
from hf_integration.prediction import from_last_stage, stage_logits
from hf_integration.preflight import compare_inputs_of
from hf_integration.replica_batches import StandIn
from hf_integration.replica_data import ReplicaData
from hf_integration.timeline import MeasuredTimeline
from npu_plugins.checkpoint import save_hf
from npu_plugins.comm import ProcessMesh
from npu_plugins.diagnostics import watch_for_hangs
from npu_plugins.pipeline import hf_names


class NpuTrainer(InputChecks, ReplicaData, ReducedGradients, CheckpointingTrainer):
    """`transformers.Trainer` that also trains with tensor, pipeline and data parallelism at once.

    With `NpuTrainingArguments` that ask for tp × pp = 1, or with plain `TrainingArguments`, it is the Trainer
    but for its checkpoints (`CheckpointingTrainer`). Otherwise each rank keeps its part of the model,
    DeepSpeed's engine is made on a `ProcessMesh`, and the Trainer's loop goes on as before: its gradient
    accumulation gives the pipeline's micro-batches.

    Args:
        model: a causal language model of transformers. With pipeline stages it may have been built under
            ``torch.device("meta")``; a rank then never holds more than its part.
        args: preferably `NpuTrainingArguments`.
        weights: directory that `save_pretrained` wrote, for a model on the meta device. Without it such a
            model's weights are drawn, after ``args.seed``.
        mesh: of the job; by default it is made from the arguments.
        peft_config: peft's, to train adapters instead of the model, drawn after ``args.seed``; a `PeftModel`
            as the model serves as well. A divided model takes a `LoraConfig`.

    All other arguments are the Trainer's.

    Raises:
        TrainingInputError: the model, or an argument, does not go with the degrees.
    """

    model: Any
    _created_lr_scheduler: bool

    def __init__(
        self,
        model: PreTrainedModel | None = None,
        args: Any = None,
        *positional: Any,
        weights: str | Path | None = None,
        mesh: ProcessMesh | None = None,
        peft_config: Any = None,
        **keywords: Any,
    ) -> None:
        self.parallel: ParallelSettings = getattr(args, "parallel", ParallelSettings())
        self.mesh: Any = mesh
        self._weights = weights
        self._engine: Any = None
        self._divided: nn.Module | None = None
        """The model that the engine was made for."""
        model, self._lora = adapted(model, peft_config, args, self.parallel.divides)
        self._pending: list[MicroBatch] = []
        _check_no_dry_run(args)
        if self.parallel.divides:
            named = inspect.signature(Trainer).bind_partial(model, args, *positional, **keywords)
            _check_inputs(model, named.arguments)
        if getattr(args, "world_size", 1) > 1:
            watch_for_hangs()
        super().__init__(model, args, *positional, **keywords)
        check_tokenizer(self.processing_class, getattr(self.model, "config", None))
        if getattr(self.args, "preflight", False):
            compare_inputs_of(self)
        if self.parallel.pp > 1:
            self.add_callback(_ForgetUnfinishedStep(self._pending))
            if self.args.pipeline_timeline is not None:
                self.add_callback(MeasuredTimeline.of_run(self.args, type(model).__name__))
        first = self.mesh is None or self.mesh.rank("model") == 0
        self._measurements = Measurements(self.args.device, first)
        self.add_callback(self._measurements)
        self._add_checks()

    def _add_checks(self) -> None:
        if getattr(self.args, "find_nonfinite", False):  # first, since nan makes gradients differ as well
            self.add_callback(FindNonFinite(self))
        for flag, check in (("check_gradients", CheckGradients), ("check_memory", CheckMemory)):
            if (every := getattr(self.args, flag, None)) is not None:
                self.add_callback(check(every, self))

    # What the parent makes in its constructor

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        found = super()._build_accelerator_args(**kwargs)
        if self.parallel.divides:
            found["mixed_precision"] = "no"  # the engine casts
        self._accelerator_arguments = found
        return found

    def create_accelerator_and_postprocess(self) -> None:
        """Make the accelerator, one that knows the mesh where the model is divided."""
        super().create_accelerator_and_postprocess()
        if not self.parallel.divides:
            return
        if self.mesh is None:
            device = self.args.device  # accelerate numbers even the CPU
            device = torch.device("cpu") if device.type == "cpu" else device
            self.mesh = ProcessMesh.create(self.args.parallel_config, device=device)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        self.accelerator = MeshAccelerator(self.mesh, seed, **self._accelerator_arguments)
        self.gather_function = self.accelerator.gather_for_metrics

    # The engine

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader, resume_from_checkpoint: str | None
    ) -> tuple[Any, DataLoader]:
        if not self.parallel.divides:
            return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self._guard_workers(train_dataloader)
        if self._created_lr_scheduler:
            self.lr_scheduler, self._created_lr_scheduler = None, False
        self._make_engine(max_steps, with_optimizer=True)
        self.create_scheduler(num_training_steps=max_steps)
        if resume_from_checkpoint is not None:
            load_state(*self._state(resume_from_checkpoint))
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self._engine, train_dataloader

    def _make_engine(self, max_steps: int, with_optimizer: bool) -> None:
        """Divide the model and make the engine, unless that has been done for this model."""
        if self._engine is not None and self._divided is self.model:
            return
        config = engine_config(self.args, self.model.config, max_steps)
        self.whole_model_parameters = self.model.num_parameters(exclude_embeddings=True)
        if self.model.device.type == "meta" and self._weights is None:
            set_seed(self.args.seed)  # its weights are about to be drawn
        module = divide(self.model, self._weights, self.mesh, config)
        if self._lora is not None:
            self._lora.insert(module, self.mesh)
        if self.mesh.size("pp") > 1:
            module.loss_fn = loss_of(self._micro_batch_loss, self.args.gradient_accumulation_steps)
            self.model = self.model.to("meta")  # of the whole model only its configuration is needed now
        else:
            self.model = module
        optimizer = None
        self.optimizer = None
        if with_optimizer and "optimizer" not in config:
            optimizer = self.create_optimizer(module)
        self._engine = make_engine(module, self.mesh, config, optimizer)
        self._divided = self.model
        self.model_wrapped = self.deepspeed = self._engine
        self.watch_engine(self._engine)
        self.optimizer = None
        if with_optimizer:
            self.optimizer = DeepSpeedOptimizerWrapper(self._engine.optimizer)
            self.accelerator._optimizers = [self.optimizer]
        if self._engine.lr_scheduler is not None:
            self.lr_scheduler = DeepSpeedSchedulerWrapper(self._engine.lr_scheduler, self.optimizer)
        if self.mesh.size("pp") == 1:
            self.accelerator.engine = self._engine

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters with weight decay, the same whatever stage they are on."""
        if self.parallel.pp == 1:
            return super().get_decay_parameter_names(model)
        decaying = set(super().get_decay_parameter_names(model.hf_model))
        return [local for local, name in hf_names(model).items() if name in decaying]

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        return self._engine if self.parallel.divides else super()._wrap_model(model, training, dataloader)

    # One step

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Train on a batch; in a pipeline, keep it until those of the whole step are there."""
        stands_in = isinstance(inputs, StandIn)
        if not stands_in:
            self._measurements.count(inputs)
        if self.parallel.pp == 1:
            if not stands_in:
                return super().training_step(model, inputs, num_items_in_batch)
            with self.accelerator.counting_nothing():
                return torch.zeros_like(super().training_step(model, inputs, num_items_in_batch))
        items = None if num_items_in_batch is None else float(num_items_in_batch)
        self._pending.append(MicroBatch(inputs, items))
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        count = self.args.gradient_accumulation_steps
        batches = [each.for_engine(isinstance(each.inputs, StandIn)) for each in self._pending]
        # The end of an epoch may have fewer, but a schedule has its number: the rest count nothing.
        batches += [self._pending[-1].for_engine(filler=True)] * (count - len(batches))
        self._pending.clear()
        loss = self._engine.train_batch(iter(batches)).to(self.args.device)
        if (steps := self.args.torch_empty_cache_steps) and self.state.global_step % steps == 0:
            clear_device_cache()
        return loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return the Trainer's own loss, safe to hand to DeepSpeed's backward pass as it is."""
        result = super().compute_loss(model, inputs, *args, **kwargs)
        return apart(result) if isinstance(result, torch.Tensor) else result

    def _micro_batch_loss(
        self, logits: torch.Tensor, inputs: dict[str, Any], items: float | None
    ) -> torch.Tensor:
        """Return the loss of a micro-batch as `Trainer.training_step` would start its backward pass from."""
        whole = LastStage(self.model, logits, training=True)
        count = None if items is None else torch.tensor(items, device=logits.device)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(whole, inputs, num_items_in_batch=count)
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            by_model = self.model_accepts_loss_kwargs and items is not None
            scaled = by_model or self.compute_loss_func is not None
        return loss if scaled else loss / self.current_gradient_accumulation_steps

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        if not self.parallel.divides:
            return super()._clip_grad_norm(model)
        return self._get_grad_norm(model)  # the engine has clipped within its step

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        if not self.parallel.divides:
            return super()._get_grad_norm(model, grad_norm=grad_norm)
        norm = self.accelerator.measured_norm
        norm = self._engine.get_global_grad_norm() if norm is None else norm
        return norm if norm is None else float(norm)

    # Evaluation

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as the Trainer does; make the engine first, if there is none yet."""
        if self.parallel.divides and (self._engine is None or self._divided is not self.model):
            self._make_engine_for_evaluation()
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def _make_engine_for_evaluation(self) -> None:
        if self.train_dataset is None:
            self._make_engine(1, with_optimizer=False)
        else:  # training may follow, on this engine
            *_, steps = self.set_initial_training_values(self.args, self.get_train_dataloader())
            self._make_engine(steps, with_optimizer=True)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Return loss, logits and labels of a batch, on every rank of the replica."""
        self.check_lengths([inputs])
        inputs = dict(self.without_repeated_rows(inputs)) if self.parallel.divides else inputs
        if self.parallel.pp == 1:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        logits = stage_logits(self._engine, MicroBatch(inputs, None).for_engine()[0])
        if not prediction_loss_only or not all(inputs.get(name) is not None for name in self.label_names):
            logits = from_last_stage(self._engine, logits)
            whole = LastStage(self.model, logits, training=False)
            return super().prediction_step(whole, inputs, prediction_loss_only, ignore_keys)
        items = self._get_num_items_in_batch([inputs], self.args.device)
        loss = torch.zeros((), device=self.args.device)
        if logits is not None:
            whole = LastStage(self.model, logits, training=False)
            with torch.no_grad(), self.compute_loss_context_manager():
                loss, _ = self.compute_loss(
                    whole, dict(inputs), return_outputs=True, num_items_in_batch=items
                )
            loss = loss.detach().mean().float()
        return from_last_stage(self._engine, loss), None, None

    def pipeline_logits(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the logits `[batch, seq, vocab]` of a batch, on every rank; all of them must call this."""
        if self._engine is None:
            self._make_engine_for_evaluation()
        return from_last_stage(self._engine, stage_logits(self._engine, self._prepare_inputs(inputs)))

    # Log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add tokens per second and the memory of every rank to a training entry."""
        if "loss" in logs:
            logs.update({key: value for key, value in self._measurements.take().items() if key not in logs})
        super().log(logs, start_time)

    # Saving and loading

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write one plain Hugging Face directory, whatever the degrees; every rank must call this."""
        if not self.parallel.divides:
            super().save_model(output_dir, _internal_call)
            return
        directory = self.args.output_dir if output_dir is None else output_dir
        if self._engine is None:
            self._make_engine_for_evaluation()
        if self._lora is not None:
            save_adapters(self._engine.module, self._lora, self.mesh, directory)
        else:
            save_hf(self._engine.module, self.mesh, directory)
        if self.args.should_save and self.processing_class is not None:
            self.processing_class.save_pretrained(directory)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def save_merged_model(self, output_dir: str | Path) -> None:
        """Write one plain Hugging Face directory with the LoRA adapters merged into the weights.

        The model stays as it is; every rank must call this.

        Raises:
            TrainingInputError: there are no LoRA adapters, or they cannot be merged.
        """
        if self._engine is None and self.parallel.divides:
            self._make_engine_for_evaluation()
        if self._lora is not None:
            save_merged(self._engine.module, self.mesh, output_dir)
        else:
            save_merged_undivided(self, output_dir)
        if self.args.should_save and self.processing_class is not None:
            self.processing_class.save_pretrained(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self.parallel.divides:  # else the engine loads the weights, once it is there
            super()._load_from_checkpoint(resume_from_checkpoint, model)


class _ForgetUnfinishedStep(TrainerCallback):
    """Drops the batches of a step that an epoch's end has cut short, as the Trainer never steps on them."""

    def __init__(self, pending: list[MicroBatch]) -> None:
        self._pending = pending

    def on_epoch_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Drop them."""
        self._pending.clear()


def _check_no_dry_run(args: Any) -> None:
    if getattr(args, "dry_run", False):
        raise TrainingInputError(
            "dry_run is for train.py, and an NpuTrainer would train all the same; print "
            "hf_integration.dry_run.dry_run(args, model, sequence) in place of making one"
        )


def _check_inputs(model: Any, given: Mapping[str, Any]) -> None:
    if not isinstance(model, PreTrainedModel):
        raise TrainingInputError(
            f"model is a {type(model).__name__}, which cannot be divided; give a causal language model of "
            "transformers (model_init builds another one at every train(), and is not offered here)"
        )
    if given.get("optimizers", (None, None)) != (None, None):
        raise TrainingInputError(
            "optimizers holds parameters of the whole model, of which a rank trains a part; give "
            "optimizer_cls_and_kwargs, or the flags of TrainingArguments"
        )
