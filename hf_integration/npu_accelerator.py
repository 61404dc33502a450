"""accelerate's `Accelerator` for a training loop of one's own, with tensor, pipeline and data parallelism."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import (
    DataLoaderConfiguration,
    DeepSpeedOptimizerWrapper,
    DeepSpeedPlugin,
    DeepSpeedSchedulerWrapper,
    DummyScheduler,
)
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from hf_integration.accelerate_settings import (
    check_launch,
    hide_deepspeed_from_accelerate,
    launched_config,
    launched_config_file,
    launched_precision,
    launched_with_deepspeed,
)
from hf_integration.divided_optimizer import give_part, group_of_each
from hf_integration.engines import divide, make_engine
from hf_integration.errors import TrainingInputError
from hf_integration.loop_config import LoopSettings, loop_config
from hf_integration.mesh_accelerator import MeshAccelerator
from hf_integration.npu_arguments import check_precision, read_deepspeed_config
from hf_integration.parallel_settings import ParallelFlags, ParallelSettings, parallel_settings
from hf_integration.pipelined_model import PipelinedModel
from hf_integration.prepared import Given, sort_out
from npu_plugins.checkpoint import save_hf
from npu_plugins.comm import ProcessMesh
from npu_plugins.pipeline import hf_names


def npu_accelerator(
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    *,
    deepspeed: str | Path | dict[str, Any] | None = None,
    micro_batches: int = 1,
    mixed_precision: str | None = None,
    gradient_accumulation_steps: int | None = None,
    seed: int | None = None,
    **keywords: Any,
) -> Accelerator:
    """Return an accelerator for a plain loop: ``prepare``, ``backward``, ``step`` as accelerate has them.

    At degrees of 1 it is accelerate's own, with DeepSpeed where ``deepspeed``, or ``accelerate launch``, asks
    for it. Otherwise it is a `DividedAccelerator`.

    Args:
        tensor_parallel: ranks that share each matrix; by default the configuration's, else 1.
        pipeline_parallel: ranks that the layers are divided into; by default the configuration's, else 1.
        deepspeed: path or dict of a DeepSpeed configuration; by default what ``accelerate launch`` has. Where
            it does not say by which norm to clip, DeepSpeed clips by 1.0; without one nothing is clipped.
        micro_batches: into which a pipeline cuts each batch; only with pipeline stages.
        mixed_precision: ``bf16``, ``fp16`` or ``no``; by default what ``accelerate launch`` has.
        gradient_accumulation_steps: batches of an optimizer step, which with pipeline stages must be 1; by
            default what ``accelerate launch`` has, else 1.
        seed: of shuffling; by default 0, and accelerate's own way at degrees of 1.
        keywords: other arguments of `Accelerator`.

    Raises:
        TrainingInputError: the degrees do not divide the ranks, or something asked for cannot be done.
    """
    config, asked = _asked_for(deepspeed)
    steps = gradient_accumulation_steps or asked
    settings = parallel_settings(ParallelFlags(tensor_parallel, pipeline_parallel), config)
    _check_cuts(settings.pp, micro_batches, steps)
    if settings.divides:
        return DividedAccelerator(
            settings,
            precision=mixed_precision or launched_precision() or "no",
            micro_batches=micro_batches,
            seed=seed or 0,
            with_file=config is not None,
            gradient_accumulation_steps=steps,
            **keywords,
        )
    if deepspeed:
        # That of the settings has a degree of 1 by an argument in it, where the file had another one.
        keywords["deepspeed_plugin"] = DeepSpeedPlugin(hf_ds_config=copy.deepcopy(settings.config or config))
    if seed is not None:
        keywords["dataloader_config"] = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=seed)
    return Accelerator(mixed_precision=mixed_precision, gradient_accumulation_steps=steps, **keywords)


OF_A_WHOLE_MODEL = (
    "deepspeed_plugin",
    "deepspeed_plugins",
    "fsdp_plugin",
    "torch_tp_plugin",
    "megatron_lm_plugin",
    "parallelism_config",
    "dynamo_backend",
    "dynamo_plugin",
    "gradient_accumulation_plugin",
    "kwargs_handlers",
    "split_batches",
)
"""Arguments of `Accelerator` for what it does to whole models and to loaders, and is not done here."""
OF_LOADERS = ("split_batches", "dispatch_batches", "data_seed", "use_stateful_dataloader")
"""Those of `DataLoaderConfiguration`."""


def _check_keywords(keywords: Mapping[str, Any]) -> None:
    """Refuse arguments that a divided model would pass over."""
    loaders = keywords.get("dataloader_config")
    asked = [name for name in OF_A_WHOLE_MODEL if keywords.get(name)]
    asked += [f"dataloader_config's {name}" for name in OF_LOADERS if getattr(loaders, name, None)]
    if asked:
        raise TrainingInputError(
            f"{asked[0]} is given, which is not looked at with tensor or pipeline parallelism; leave it out "
            "(deepspeed, gradient_accumulation_steps and seed are npu_accelerator's own arguments)"
        )


def _asked_for(deepspeed: str | Path | dict[str, Any] | None) -> tuple[dict[str, Any] | None, int]:
    """Return the DeepSpeed configuration, None without one, and the launcher's batches of a step."""
    given = deepspeed or launched_config_file()
    if given:
        return dict(read_deepspeed_config(given)), 1
    if not launched_with_deepspeed():
        return None, 1
    config = launched_config()
    # To a loop this is a number of batches, but to a pipeline's engine one of their parts.
    steps, config["gradient_accumulation_steps"] = config["gradient_accumulation_steps"], "auto"
    return config, 1 if steps == "auto" else steps


def _check_cuts(stages: int, micro_batches: int, steps: int) -> None:
    if micro_batches < 1 or (stages == 1 and micro_batches != 1):
        raise TrainingInputError(
            f"micro_batches is {micro_batches}, which with {stages} pipeline stage(s) must be "
            f"{'1 (see gradient_accumulation_steps)' if stages == 1 else '1 or more'}"
        )
    if stages > 1 and steps != 1:
        raise TrainingInputError(
            f"gradient_accumulation_steps is {steps}, but a pipeline steps after each batch; give batches "
            f"{steps} times as large and micro_batches instead"
        )


class DividedAccelerator(MeshAccelerator):
    """`Accelerator` whose ``prepare`` divides the model among the ranks and makes DeepSpeed's engine for it.

    As under accelerate's own DeepSpeed, ``backward`` steps the optimizer too at the end of an accumulation,
    ``gradient_clipping`` of the configuration clips, and ``optimizer.step()`` is for the looks. With
    pipeline stages the step happens within the model's call (see `PipelinedModel`).
    """

    def __init__(
        self,
        settings: ParallelSettings,
        *,
        precision: str,
        micro_batches: int,
        seed: int,
        with_file: bool,
        cpu: bool = False,
        **keywords: Any,
    ) -> None:
        """Bring up the process group and the mesh; ``with_file``: a DeepSpeed configuration was given.

        Raises:
            TrainingInputError: the degrees do not divide the ranks, or the launcher asks for something else.
        """
        _check_keywords(keywords)
        check_launch()
        hide_deepspeed_from_accelerate()
        if precision not in ("no", "bf16", "fp16"):
            raise TrainingInputError(f"mixed_precision is {precision!r}; choose no, bf16 or fp16")
        check_precision(settings.config or {}, fp16=precision == "fp16", bf16=precision == "bf16")
        state = PartialState(cpu=cpu)
        device = torch.device("cpu") if state.device.type == "cpu" else state.device
        mesh = ProcessMesh.create(settings.degrees(state.num_processes), device=device)
        # The engine casts, and not accelerate.
        super().__init__(mesh, seed, cpu=cpu, mixed_precision="no", **keywords)
        self._settings, self._precision, self._cuts = settings, precision, micro_batches
        self._with_file = with_file
        self._pipelined: PipelinedModel | None = None

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Divide the model, and return it and all else ready for the loop, in the order given.

        Args:
            args: one model of transformers, at most one optimizer and one scheduler, and loaders. The model
                may have been built on the meta device; its weights are then drawn.
            device_placement: not offered.

        Raises:
            TrainingInputError: there is no such model, or something in ``args`` cannot be prepared.
        """
        if device_placement is not None:
            raise TrainingInputError("device_placement is not offered for a divided model; leave it out")
        given = sort_out(args)
        replaced = {} if given.model is None else self._prepare_model(given.model, given)
        for each in args:
            if isinstance(each, DataLoader):
                replaced[id(each)] = self.prepare_data_loader(each)
        result = tuple(replaced[id(each)] for each in args)
        return result if len(result) > 1 else result[0]

    def _prepare_model(self, model: PreTrainedModel, given: Given) -> dict[int, Any]:
        """Return what stands for model, optimizer and scheduler, by the identity of each."""
        if self._models:
            raise TrainingInputError("a model has been prepared already; make an accelerator for each")
        optimizer, staged = given.own_optimizer, self.mesh.size("pp") > 1
        settings = LoopSettings(
            replicas=self.mesh.size("dp"),
            micro_batches=self._cuts if staged else self.gradient_accumulation_steps,
            parts=self._cuts,
            precision=self._precision,
            with_file=self._with_file,
        )
        config = loop_config(self._settings.config or {}, settings, model, given)
        given.check_against(config)
        groups = {} if optimizer is None else group_of_each(optimizer, model)
        module = divide(model, None, self.mesh, config)
        if optimizer is not None:
            part = dict(module.named_parameters())
            if staged:
                part = {name: part[local] for local, name in hf_names(module).items()}
            give_part(optimizer, groups, part)
        engine = make_engine(module, self.mesh, config, optimizer)
        if staged:
            self._pipelined = PipelinedModel(engine, model.to("meta"), self._cuts)
        else:
            self.engine = engine
        replaced: dict[int, Any] = {id(model): self._pipelined or engine}
        self._models.append(replaced[id(model)])
        if given.optimizer is not None:
            stepped = replaced[id(given.optimizer)] = DeepSpeedOptimizerWrapper(engine.optimizer)
            self._optimizers.append(stepped)
        if given.scheduler is not None:
            replaced[id(given.scheduler)] = (
                DeepSpeedSchedulerWrapper(engine.lr_scheduler, stepped)
                if isinstance(given.scheduler, DummyScheduler)
                # accelerate would step once for each rank, unless batches are split.
                else AcceleratedScheduler(
                    given.scheduler, stepped, self.step_scheduler_with_optimizer, split_batches=True
                )
            )
            self._schedulers.append(replaced[id(given.scheduler)])
        return replaced

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Go back from the loss of this accelerator's model, and step at the end of an accumulation.

        Raises:
            TrainingInputError: with pipeline stages, this is not the loss of the model's last call.
        """
        if self._pipelined is None:
            super().backward(loss / self.gradient_accumulation_steps, **kwargs)
            return
        expected, self._pipelined.stepped_with = self._pipelined.stepped_with, None
        if loss is not expected:
            raise TrainingInputError(
                "backward got something else than the loss of the pipelined model's last call, which has "
                "gone back through the stages already; hand outputs.loss over as it is"
            )

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Return the norm of the last step's gradients, which the engine has clipped already.

        Raises:
            TrainingInputError: it has clipped otherwise.
        """
        engine = self._engine()
        if (max_norm, norm_type) != (engine.gradient_clipping(), 2):
            raise TrainingInputError(
                f"clip_grad_norm_ got max_norm {max_norm} and norm_type {norm_type}, but the engine clips by "
                f"the 2-norm at {engine.gradient_clipping()}, within its step; set gradient_clipping in the "
                "DeepSpeed configuration to max_norm"
            )
        return engine.get_global_grad_norm() if self.measured_norm is None else self.measured_norm

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Refuse: the gradients are the engine's, which has stepped with them already.

        Raises:
            TrainingInputError: always.
        """
        raise TrainingInputError(
            "clip_grad_value_ is not offered for a divided model; set gradient_clipping in the DeepSpeed "
            "configuration, which clips by the norm"
        )

    def _engine(self) -> Any:
        engine = self.engine if self._pipelined is None else self._pipelined.engine
        if engine is None:
            raise TrainingInputError(
                "no model has been prepared; call prepare(model, optimizer, loader) first"
            )
        return engine

    def save_model(
        self,
        model: nn.Module,
        save_directory: Any,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the prepared model as one plain Hugging Face directory; every rank must call this.

        Raises:
            TrainingInputError: files other than safetensors, or of another size, are asked for.
        """
        if not safe_serialization or max_shard_size != "10GB":
            raise TrainingInputError(
                f"save_model got max_shard_size {max_shard_size!r} and safe_serialization "
                f"{safe_serialization}; a divided model is written as safetensors of the usual size: leave "
                "both out"
            )
        save_hf(self._engine().module, self.mesh, save_directory)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Refuse: no rank has the whole model.

        Raises:
            TrainingInputError: always.
        """
        raise TrainingInputError("no rank has the whole state dict of a divided model; use save_model")

    def save_state(self, *args: Any, **kwargs: Any) -> str:
        """Refuse: accelerate would write the part of one rank.

        Raises:
            TrainingInputError: always.
        """
        raise TrainingInputError(
            "save_state is not offered for a divided model; save_model writes its weights, and NpuTrainer "
            "writes checkpoints to resume from"
        )

    def load_state(self, *args: Any, **kwargs: Any) -> None:
        """Refuse, as `save_state` does.

        Raises:
            TrainingInputError: always.
        """
        raise TrainingInputError(
            "load_state is not offered for a divided model; load weights with from_pretrained before "
            "prepare, or resume with NpuTrainer"
        )
