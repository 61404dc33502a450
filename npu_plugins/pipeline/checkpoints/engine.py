"""The part of the pipeline engine that saves and loads, with DeepSpeed's API and file names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from deepspeed.runtime.model_checkpointing.constants import CHECKPOINT_WRITER

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.pipeline.checkpoints import saving
from npu_plugins.pipeline.checkpoints.description import (
    KEY,
    UNIVERSAL_KEY,
    copies,
    describe,
    identity,
    universal_info,
)
from npu_plugins.pipeline.checkpoints.loading import Wanted, load, tag_of_latest
from npu_plugins.pipeline.checkpoints.places import check_places, is_partitioned
from npu_plugins.pipeline.checkpoints.storage import ReadableFiles
from npu_plugins.pipeline.errors import StageError

_LOG = logging.getLogger(__name__)


class EngineCheckpoints:
    """`save_checkpoint` and `load_checkpoint`, to be inherited before DeepSpeed's `PipelineEngine`."""

    # DeepSpeed's engine, seen from here.
    module: Any
    mesh: Any
    control: Any
    optimizer: Any
    global_steps: int
    global_rank: int
    _config: Any
    checkpoint_engine: Any

    def _configure_checkpointing(self) -> None:
        wanted = self._config.checkpoint_config[CHECKPOINT_WRITER]
        if wanted is not None or self._config.datastates_config.enabled:
            raise CheckpointError(
                "checkpoint.writer and datastates_ckpt write files in ways of their own, which need not be "
                "whole when latest names them; leave them out, the pipeline engine waits for its files"
            )
        if self.use_node_local_storage():  # type: ignore[attr-defined]
            raise CheckpointError(
                "checkpoint.use_node_local_storage is true, but the ranks of a pipeline read each other's "
                "files at another layout; leave it out and save to a file system that all nodes share"
            )
        super()._configure_checkpointing()  # type: ignore[misc]
        self.checkpoint_engine = ReadableFiles(self._config)

    def train_batch(self, data_iter: Any = None) -> Any:
        """Train one batch; one that fails leaves the layers' seeds as they were.

        It has run a different number of times on each stage, and seeds that differ between stages could be
        saved for no other layout.
        """
        calls = self.module.calls
        try:
            return super().train_batch(data_iter)  # type: ignore[misc]
        except StageError:
            self.module.calls = calls
            raise

    def save_checkpoint(
        self,
        save_dir: str,
        tag: str | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Save the state of training in DeepSpeed's files, whole or not at all; every rank calls this.

        The checkpoint gets its name, and ``latest`` names it, when the files of all ranks are on the disk.

        Args:
            save_dir: of all checkpoints; the same on all ranks.
            tag: the checkpoint's name; by default ``global_step<N>``.
            client_state: what the caller wants back: plain values and tensors.
            save_latest: whether ``latest`` names it.
            exclude_frozen_parameters: whether parameters that are not trained are left out.

        Raises:
            CheckpointError: on every rank, if one failed. Earlier checkpoints are as they were.
        """
        if not save_dir:
            raise CheckpointError(f"save_dir is {save_dir!r}; give a directory")
        name = f"global_step{self.global_steps}" if tag is None else str(tag)
        state = dict(client_state or {})
        saving.save(self, Path(save_dir), name, state, save_latest, not exclude_frozen_parameters)
        return True

    def load_checkpoint(
        self,
        load_dir: str,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Load a checkpoint that was saved at any number of stages, replicas and tensor-parallel ranks.

        Every rank calls this. Files are looked at on all ranks before anything is loaded, by their checksums
        too if there is a manifest. With
        ``"checkpoint": {"load_universal": true}`` the checkpoint is a folder of ``ds_to_universal.py``.

        Args:
            load_dir: of all checkpoints.
            tag: the checkpoint's name; None: what ``latest`` names.
            load_module_strict: whether layers must have exactly the saved parameters.
            load_optimizer_states: False: its state stays, a new engine's empty one.
            load_lr_scheduler_states: False: the scheduler stays as it is.
            load_module_only: nothing but weights.
            custom_load_fn: not with a pipeline.

        Returns:
            The path of the file with this rank's common state, and the client state; (None, None) if no tag
            was given and there is no ``latest``.

        Raises:
            CheckpointError: on every rank, if the checkpoint is not whole or does not fit; nothing was
            loaded.
        """
        if custom_load_fn is not None:
            raise CheckpointError("custom_load_fn has no layer files to work on in a pipeline; leave it out")
        universal = bool(self.load_universal_checkpoint())  # type: ignore[attr-defined]
        if tag is None:
            tag = tag_of_latest(self, Path(load_dir), universal)
        if tag is None:
            _LOG.warning("%s has no file 'latest'; nothing is loaded", load_dir)
            return None, None
        wanted = Wanted(
            load_module_strict, load_optimizer_states, load_lr_scheduler_states, load_module_only, universal
        )
        return load(self, Path(load_dir), str(tag), wanted)

    def _common_checkpoint_state(
        self, module: Any, zero_optimizer_state: bool, frozen: bool
    ) -> dict[str, Any]:
        """Add the description, and what ``ds_to_universal.py`` asks for, to the mp_rank file.

        The bf16 optimizer has files of its own, as ZeRO has; DeepSpeed repeats one replica's part here.
        """
        partitioned = bool(zero_optimizer_state) or is_partitioned(self)
        state = super()._common_checkpoint_state(module, partitioned, frozen)  # type: ignore[misc]
        return {**state, KEY: describe(self), UNIVERSAL_KEY: self._universal_info}

    def _note_layout(self) -> None:
        """Gather, once, what all saves repeat; every rank calls this when the engine is built."""
        check_places(self)
        self._universal_info = universal_info(self)
        self._model_identity = identity(self)
        if not is_partitioned(self):
            return
        # ds_to_universal.py takes every stage's fragments of a tied weight, which with replicas are cut at
        # other places: only the first copy's must be found. Nothing else reads these addresses.
        for group in self.optimizer._param_slice_mappings:
            for name in copies(self.module) & group.keys():
                del group[name]
