"""Loading a checkpoint into an engine of any layout: all is looked at on all ranks, then all is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_plugins.checkpoint.aside import found_at
from npu_plugins.checkpoint.atomic import faults_on
from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.manifest import MANIFEST_FILE
from npu_plugins.checkpoint.ranks import Ranks
from npu_plugins.pipeline.checkpoints.description import KEY
from npu_plugins.pipeline.checkpoints.modules import stored_modules
from npu_plugins.pipeline.checkpoints.restore import Restoring, refresh_master
from npu_plugins.pipeline.checkpoints.source import Files
from npu_plugins.pipeline.checkpoints.states import SavedStates, UniversalStates
from npu_plugins.pipeline.checkpoints.storage import ControlRanks
from npu_plugins.pipeline.checkpoints.weights import WeightsToLoad


@dataclass(frozen=True)
class Wanted:
    """What a load is to restore."""

    strict: bool = True
    """Whether layers must have exactly the parameters that were saved."""
    optimizer: bool = True
    """Whether the optimizer's state is restored; if not, it stays, and master weights are the loaded ones."""
    scheduler: bool = True
    """Whether the learning-rate scheduler is."""
    module_only: bool = False
    """Nothing but weights: counters stay as well."""
    universal: bool = False
    """Whether the checkpoint is a folder of ds_to_universal.py."""


def load(engine: Any, load_dir: Path, tag: str, wanted: Wanted) -> tuple[str, dict[str, Any]]:
    """Load a checkpoint; every rank calls this.

    Returns:
        The path of the mp_rank file, and what it holds besides the engine's own state.

    Raises:
        CheckpointError: on every rank, if it does not fit one; nothing has been loaded then.
    """
    directory, ranks = found_at(load_dir / tag), ControlRanks(engine.control)
    check_whole(directory, ranks)
    job = ranks.together(lambda: _Loading(engine, directory, wanted))
    job.apply()
    engine.control.worst(0)
    return str(job.path), job.client_state()


def check_whole(directory: Path, ranks: Ranks) -> None:
    """Read a checkpoint through if it has a manifest; the ranks divide its files (a collective).

    Raises:
        CheckpointError: on every rank, if a file is missing or has another size or checksum.
    """
    if not ranks.first((directory / MANIFEST_FILE).is_file()):
        return
    faults = faults_on(directory, ranks)
    if faults:
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        raise CheckpointError(
            f"{directory} is damaged: {faults[0]}{more}; load another checkpoint, or delete its "
            f"{MANIFEST_FILE} if you have changed it yourself"
        )


def tag_of_latest(engine: Any, load_dir: Path, universal: bool) -> str | None:
    """Return the tag that ``latest`` names, the same on all ranks; None if there is no such file."""
    path = load_dir / ("latest_universal" if universal else "latest")
    text = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    found = sorted(set(engine.control.texts(text)))
    if len(found) > 1:
        raise CheckpointError(
            f"{path} reads {' and '.join(repr(each) for each in found)} on different ranks; load from a file "
            "system that all nodes share"
        )
    if not text and universal:
        raise CheckpointError(
            f"checkpoint.load_universal is true, but there is no {path}; make one with ds_to_universal.py, "
            "or pass the tag of a universal folder"
        )
    return text or None


class _Loading:
    """Everything that is needed, found and looked at."""

    def __init__(self, engine: Any, directory: Path, wanted: Wanted) -> None:
        self.engine, self.wanted = engine, wanted
        self.files = Files(directory)
        has_zero_folder = (directory / "zero").is_dir()
        if has_zero_folder != wanted.universal:
            what = "a" if has_zero_folder else "no"
            raise CheckpointError(
                f'{directory} is {what} universal folder; set "checkpoint": {{"load_universal": '
                f"{str(has_zero_folder).lower()}}}"
            )
        mesh = engine.mesh
        same = (self.files.pp, self.files.tp) == (mesh.size("pp"), mesh.size("tp"))
        place = mesh.rank("model") if same else 0
        self.path = directory / f"mp_rank_{place:02d}_model_states.pt"
        self.common = self.files.common(place)
        self.weights: WeightsToLoad | None = None
        if not wanted.universal:
            self._take_layers()
        self.restoring = self._restoring()
        if wanted.universal and self._needs_layers():
            self._take_layers()
        self._check_scheduler()

    def _take_layers(self) -> None:
        self.weights = WeightsToLoad(self.engine, self.files, self.wanted.strict)
        self.weights.check()

    def _restoring(self) -> Restoring | None:
        engine, wanted = self.engine, self.wanted
        states_wanted = wanted.optimizer and not wanted.module_only
        if engine.optimizer is None or not (states_wanted or wanted.universal):
            return None
        states = (UniversalStates if wanted.universal else SavedStates)(self.files, engine)
        saved_weight = self.weights.value if self.weights is not None else _no_weight
        job = Restoring(engine, states, saved_weight, master_only=not states_wanted)
        job.check()
        return job

    def _needs_layers(self) -> bool:
        """Whether there is state beside the trained parameters, of which the converter takes no account.

        Raises:
            CheckpointError: there is, and the layer files are not in the folder.
        """
        restored = {id(place.parameter) for place in self.restoring.places} if self.restoring else set()
        for stored in stored_modules(self.engine.module):
            for key, value in stored.module.state_dict(keep_vars=True).items():
                if id(value) not in restored:
                    if not any(self.files.layer_files(index) for index in stored.layers):
                        raise CheckpointError(
                            f"{stored.prefix + key} is not trained, and ds_to_universal.py leaves such state "
                            f"out; copy the checkpoint's layer_*-model_states.pt to {self.files.directory}"
                        )
                    return True
        return False

    def _check_scheduler(self) -> None:
        if self.wanted.module_only or not self.wanted.scheduler or self.engine.lr_scheduler is None:
            return
        if self.common.get("lr_scheduler") is None:
            raise CheckpointError(
                f"{self.path} holds no learning-rate scheduler's state, but this engine has one; pass "
                "load_lr_scheduler_states=False"
            )

    def apply(self) -> None:
        """Load."""
        engine, wanted = self.engine, self.wanted
        if self.weights is not None:
            self.weights.apply()
        if self.restoring is not None:
            self.restoring.apply()
            if engine.zero_optimization() and not engine.zero_load_from_fp32_weights():
                refresh_master(engine)
        elif engine.optimizer is not None:
            refresh_master(engine)
        engine.loaded_checkpoint_dp_world_size = self.common["dp_world_size"]
        if wanted.module_only:
            return
        if wanted.scheduler and engine.lr_scheduler is not None:
            engine.lr_scheduler.load_state_dict(self.common["lr_scheduler"])
        engine.global_steps, engine.skipped_steps = self.common["global_steps"], self.common["skipped_steps"]
        per_step = engine.train_batch_size()
        engine.global_samples = self.common.get("global_samples", engine.global_steps * per_step)
        engine.loaded_checkpoint_mp_world_size = self.common["mp_world_size"]
        engine.module.calls = (self.common.get(KEY) or {}).get("calls", 0)

    def client_state(self) -> dict[str, Any]:
        """Return what DeepSpeed's `load_checkpoint` returns as client state."""
        wanted = self.wanted
        own = {"module", KEY}
        if not wanted.module_only:
            own |= {
                "skipped_steps",
                "global_steps",
                "dp_world_size",
                "mp_world_size",
                "data_sampler",
                "random_ltd",
            }
        if wanted.scheduler:
            own.add("lr_scheduler")
        if wanted.optimizer:
            own.add("optimizer")
        return {key: value for key, value in self.common.items() if key not in own}


def _no_weight(name: str) -> None:
    """There are no layer files, and no need of them."""
