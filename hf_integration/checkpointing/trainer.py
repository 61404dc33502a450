"""The Trainer with checkpoints that are written whole or not at all, and verified before a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import DeepSpeedSchedulerWrapper
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from ds_configs.parallel import ParallelConfig
from hf_integration.checkpointing.interruption import Interruption, let_workers_outlive_sigterm
from hf_integration.checkpointing.rank_state import (
    UnloggedLoss,
    file_name,
    load_generators,
    load_loss,
    save_rank,
)
from hf_integration.checkpointing.resuming import Job, find_checkpoint, identity, refuse_damaged
from hf_integration.checkpointing.saving import write_together
from hf_integration.divided_checkpoints import WithoutDeepSpeed, load_state, save_state
from hf_integration.errors import TrainingInputError
from hf_integration.npu_arguments import keep_model_savable
from hf_integration.parallel_settings import ParallelSettings
from npu_plugins.checkpoint import Layout, Manifest, save_checkpoint
from npu_plugins.checkpoint.atomic import checkpoint_name
from npu_plugins.checkpoint.manifest import MANIFEST_FILE
from npu_plugins.checkpoint.ranks import Ranks
from npu_plugins.checkpoint.state import holds_state
from npu_plugins.comm import ProcessMesh


class CheckpointingTrainer(Trainer):
    """`transformers.Trainer` whose checkpoints are atomic, verified, and portable between layouts.

    A checkpoint is a plain Hugging Face directory with the state of training (`save_state`), every rank's
    random generators, the Trainer's own state and a manifest, saved by
    `npu_plugins.checkpoint.save_checkpoint`. One that plain Trainer wrote is gone on from as Trainer does,
    where the model is not divided. Under FSDP, which divides the model in its own way, all is the Trainer's.

    Expects `parallel` and `mesh` to be set before the Trainer's own constructor runs.
    """

    parallel: ParallelSettings
    mesh: Any
    """Of a divided model."""
    _job_mesh: ProcessMesh | None = None
    _gone_on_from: Manifest | None = None
    """Of the checkpoint that the run goes on from, unless plain Trainer wrote it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.save_on_each_node:
            raise TrainingInputError(
                "save_on_each_node is True, but all ranks write their part of a checkpoint into one "
                "directory that every node sees; leave it out, and give an output_dir on a shared file system"
            )
        config = getattr(self.args, "hf_deepspeed_config", None)
        if config is not None:
            keep_model_savable(config.config)  # the state of training leaves out what the model's files hold
        self._interruption = Interruption(getattr(self.args, "save_on_sigterm", False))
        self.add_callback(self._interruption)

    @property
    def interrupted_at(self) -> Path | None:
        """The checkpoint with which SIGTERM has ended training; None if it has not."""
        if not self._interruption.stopped:
            return None
        return Path(self.args.output_dir, checkpoint_name(self.state.global_step))

    # The job

    def _everyone(self) -> ProcessMesh | None:
        """Return a mesh of all ranks, the model's where it is divided; None for a single process."""
        if self.mesh is not None or self.args.world_size == 1:
            return self.mesh
        if self._job_mesh is None:
            device = self.args.device  # accelerate numbers even the CPU
            device = torch.device("cpu") if device.type == "cpu" else device
            self._job_mesh = ProcessMesh.create(ParallelConfig(dp=dist.get_world_size()), device=device)
        return self._job_mesh

    def _layout(self) -> Layout:
        mesh = self._everyone()
        config: Any = self.parallel.config
        if not self.parallel.divides and self.is_deepspeed_enabled:  # by a flag, or by accelerate launch
            config = self.accelerator.state.deepspeed_plugin.deepspeed_config
        stage = ((config or {}).get("zero_optimization") or {}).get("stage", 0)
        return Layout(ParallelConfig() if mesh is None else mesh.config, int(stage))

    def _identity(self) -> Any:
        """Return the model's configuration, or its class's name where it has none."""
        return getattr(self.model, "config", None) or type(self.model).__name__

    # Going on from a checkpoint

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does, from a checkpoint that was read through and fits this run.

        Args:
            resume_from_checkpoint: a checkpoint, or True for the newest good one in ``args.output_dir``.
            args: the Trainer's.
            kwargs: the Trainer's.

        Raises:
            TrainingInputError: there is nothing to go on from, or it is damaged or does not fit.
            CheckpointError: a checkpoint could not be saved, on every rank; earlier ones are as they were.
        """
        found, self._gone_on_from = None, None
        if resume_from_checkpoint:
            found = find_checkpoint(resume_from_checkpoint, self._job())
        if found is not None and (found / MANIFEST_FILE).is_file():
            self._gone_on_from = Manifest.read(found)
        with self._interruption.listening():
            return super().train(None if found is None else str(found), *args, **kwargs)

    def _job(self) -> Job:
        return Job(
            directory=Path(self.args.output_dir),
            mesh=self._everyone(),
            layout=self._layout(),
            config=self._identity(),
            divides=self.parallel.divides,
            other_layout=bool(getattr(self.args, "allow_layout_change", False)),
        )

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Read the Trainer's state; of a run that has moved, the best checkpoint has moved with it."""
        counts = super()._init_training_state(*args, **kwargs)
        best = self.state.best_global_step
        if best and self.state.best_model_checkpoint is None:
            path = Path(self.args.output_dir, checkpoint_name(best))
            self.state.best_model_checkpoint = str(path) if path.is_dir() else None
        return counts

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader, resume_from_checkpoint: str | None
    ) -> tuple[Any, DataLoader]:
        self._guard_workers(train_dataloader)
        state = resume_from_checkpoint
        if state is None or not holds_state(state):
            return super()._prepare_for_training(max_steps, train_dataloader, state)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        load_state(*self._state(state))
        return prepared

    def _guard_workers(self, loader: DataLoader) -> None:
        if self._interruption.enabled:
            let_workers_outlive_sigterm(loader)

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as the Trainer does."""
        self._guard_workers(dataloader)
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Put back this rank's generators, and the loss that the next entry of the log has a part of.

        In another layout every rank goes on with the first one's generators: those of a tensor-parallel group
        have to draw alike, which ranks of other replicas have not done.
        """
        if self._gone_on_from is None or checkpoint is None:
            super()._load_rng_state(checkpoint)
            return
        saved_by = self._gone_on_from.layout.parallel
        names = [file_name(rank, saved_by.world_size) for rank in range(saved_by.world_size)]
        if not set(names) & set(self._gone_on_from.files):
            return  # converted from a format that has none
        files = [Path(checkpoint, name) for name in names]
        if saved_by == self._layout().parallel:
            files = [files[self.args.process_index]]
        load_generators(files[0], self.args.device)
        losses = [load_loss(file) for file in files]
        self._tr_loss += sum(loss.total for loss in losses) / len(losses)
        self._globalstep_last_logged = losses[0].since_step

    def _load_best_model(self) -> None:
        best = Path(str(self.state.best_model_checkpoint))
        if (best / MANIFEST_FILE).is_file() or self.is_deepspeed_enabled:
            refuse_damaged(best, self._job())
        if holds_state(best) and (self.parallel.divides or self.is_deepspeed_enabled):
            load_state(*self._state(best))
        else:
            super()._load_best_model()

    # Saving

    def _state(self, folder: str | Path) -> tuple[Any, Path, ProcessMesh | None, Any]:
        """Return what `save_state` and `load_state` take."""
        by_engine = isinstance(self.lr_scheduler, DeepSpeedSchedulerWrapper)
        scheduler = None if by_engine else self.lr_scheduler
        trained: Any = self.deepspeed
        if not self.parallel.divides and not self.is_deepspeed_enabled:
            optimizer: Any = self.optimizer
            plain = getattr(optimizer, "optimizer", optimizer)  # without accelerate's wrapper
            trained = WithoutDeepSpeed(self.model, plain, getattr(self.accelerator, "scaler", None))
        return trained, Path(folder), self._everyone(), scheduler

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save the checkpoint of this step, whole or not at all.

        Raises:
            CheckpointError: on every rank, if one could not do its part.
        """
        if self.is_fsdp_enabled:
            super()._save_checkpoint(model, trial)
            return
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        run, mesh = Path(self._get_output_dir(trial=trial)), self._everyone()
        step, best = self.state.global_step, self.state.best_global_step
        if best and (best == step or (run / checkpoint_name(best)).is_dir()):
            self.state.best_model_checkpoint = str(run / checkpoint_name(best))
        limit = self.args.save_total_limit
        path = save_checkpoint(
            run,
            step,
            lambda folder: write_together(self._parts(), folder, Ranks(mesh)),
            model=identity(self._identity()),
            mesh=mesh,
            zero_stage=self._layout().zero_stage,
            save_total_limit=limit if limit and limit > 0 else None,  # 0 is "all" to the Trainer
            keep={best} if best else (),
            extra={"saved_by": "transformers.Trainer"},
        )
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(path))

    def _parts(self) -> list[Callable[[Path], None]]:
        """Return what is written, in this order: the state leaves out what the model's files hold."""
        parts: list[Callable[[Path], None]] = [lambda folder: self.save_model(str(folder), True)]
        if not self.args.save_only_model:
            parts.append(lambda folder: self._save_optimizer_and_scheduler(str(folder)))
            parts.append(lambda folder: self._save_rng_state(str(folder)))
        parts.append(self._save_own_state)
        return parts

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
        else:
            save_state(*self._state(output_dir))

    def _save_rng_state(self, output_dir: str) -> None:
        if self.is_fsdp_enabled:
            super()._save_rng_state(output_dir)
        else:
            name = file_name(self.args.process_index, self.args.world_size)
            loss = UnloggedLoss(float(self._tr_loss), self._globalstep_last_logged)
            save_rank(Path(output_dir, name), self.args.device, loss)

    def _save_own_state(self, folder: Path) -> None:
        """Write the Trainer's state, and that of its callbacks (the first rank)."""
        if not self.args.should_save:
            return
        told: dict[str, Any] = {}
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                told.setdefault(type(callback).__name__, []).append(callback.state())
        # The Trainer reads one state as well as a list of those of callbacks of one class.
        self.state.stateful_callbacks = {
            name: each[0] if len(each) == 1 else each for name, each in told.items()
        }
        self.state.save_to_json(str(folder / TRAINER_STATE_NAME))

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        best = self.state.best_model_checkpoint
        if self._interruption.stopped:
            # With it the Trainer would load the best model, and might delete what has just been saved.
            self.state.best_model_checkpoint = None
        result = super()._finalize_training(*args, **kwargs)
        self.state.best_model_checkpoint = best
        return result
