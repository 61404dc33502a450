"""Which checkpoint a run goes on from, and whether it is whole and fits."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME

from hf_integration.errors import TrainingInputError
from npu_plugins.checkpoint import Layout, Manifest, find_faults, model_digest
from npu_plugins.checkpoint.atomic import steps_in
from npu_plugins.checkpoint.manifest import MANIFEST_FILE, model_content
from npu_plugins.checkpoint.ranks import Ranks
from npu_plugins.checkpoint.state import holds_state
from npu_plugins.checkpoint.torch_files import damage
from npu_plugins.comm import ProcessMesh

_MOST_DIFFERENCES = 3


@dataclass(frozen=True)
class Job:
    """The run that looks for a checkpoint."""

    directory: Path
    """Where it saves its own."""
    mesh: ProcessMesh | None
    """None for a single process."""
    layout: Layout
    config: Any
    """The model's."""
    divides: bool
    """Whether a rank has a part of the model: then a checkpoint of plain Trainer does not do."""
    other_layout: bool
    """Whether a checkpoint of another layout may be taken."""


def find_checkpoint(asked: str | bool | Path | None, job: Job) -> Path | None:
    """Return the checkpoint to go on from, read through and found good; every rank calls this.

    Args:
        asked: a checkpoint; True for the newest good one of the run; None or False for none. The text "true"
            is taken for True.
        job: the run.

    Raises:
        TrainingInputError: on every rank: the checkpoint is damaged, of another model or layout, or has
            nothing to go on with; or the run has none.
    """
    if not asked:
        return None
    if asked is True or (str(asked).lower() == "true" and not Path(asked).is_dir()):
        return _newest(job)
    path = Path(asked)
    if not all(Ranks(job.mesh).tell(path.is_dir())):
        raise TrainingInputError(
            f"--resume_from_checkpoint {path} is no directory that all ranks see; give a checkpoint, or the "
            f"flag alone for the newest good one in {job.directory}"
        )
    refuse_damaged(path, job)
    _check_fits(path, job)
    return path


def refuse_damaged(path: Path, job: Job) -> None:
    """Read a checkpoint through; every rank calls this.

    Raises:
        TrainingInputError: on every rank, with what is wrong.
    """
    fault = _fault(path, job)
    if fault:
        raise TrainingInputError(
            f"the checkpoint {path} is damaged: {fault}; give another one, or --resume_from_checkpoint alone "
            f"for the newest good one in {job.directory}"
        )


def _newest(job: Job) -> Path:
    """Return the newest good checkpoint; newer ones that are passed over are named once."""
    ranks = Ranks(job.mesh)
    names = ranks.first([path.name for path in steps_in(job.directory).values()] if not ranks.rank else None)
    for name in names:
        path = job.directory / name
        fault = _fault(path, job)
        if not fault:
            _check_fits(path, job)
            return path
        if ranks.rank == 0:
            logging.getLogger(__name__).warning("the checkpoint %s is passed over: %s", path, fault)
    what = f"none of the {len(names)} checkpoints in it is good" if names else "there is none in it"
    raise TrainingInputError(
        f"--resume_from_checkpoint asks for the newest checkpoint of {job.directory}, but {what}; start "
        "without the flag, or give it a checkpoint"
    )


def _fault(path: Path, job: Job) -> str | None:
    """Return what is wrong with a checkpoint's files, None if nothing is (a collective)."""
    ranks = Ranks(job.mesh)
    if ranks.first((path / MANIFEST_FILE).is_file() or job.divides or holds_state(path)):
        faults = find_faults(path, job.mesh)
        if not faults:
            return None
        return faults[0] + (f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else "")
    return ranks.first(None if ranks.rank else _fault_of_plain(path))


def _fault_of_plain(path: Path) -> str | None:
    """Say what keeps a checkpoint that plain Trainer wrote from being one, as far as it can be known."""
    state = path / TRAINER_STATE_NAME
    try:
        json.loads(state.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{TRAINER_STATE_NAME} is missing"
    except (OSError, ValueError) as error:
        return f"{TRAINER_STATE_NAME} cannot be read ({type(error).__name__}: {error})"
    return _fault_of_deepspeed(path)


def _fault_of_deepspeed(path: Path) -> str | None:
    """Say what is wrong with DeepSpeed's own files in such a checkpoint.

    They are read through beforehand: DeepSpeed (0.19.8) unpickles whatever is in them.
    """
    names = {each.name for each in path.glob("global_step*")}  # by which transformers finds them
    if not names:
        return None
    for latest in ("latest", "latest_universal"):
        if (path / latest).is_file():
            tag = (path / latest).read_text(encoding="utf-8", errors="replace").strip()
            if tag not in names:
                return f"{latest} names {tag!r}, which is none of {', '.join(sorted(names))}"
    for file in sorted(file for name in names for file in (path / name).rglob("*.pt")):
        problem = damage(file)
        if problem is not None:
            return f"{file.relative_to(path).as_posix()} {problem}"
    return None


def _check_fits(path: Path, job: Job) -> None:
    """Refuse a good checkpoint that this run cannot go on from."""
    if not (path / MANIFEST_FILE).is_file():
        return  # plain Trainer's, which says nothing of model and layout
    manifest = Manifest.read(path)
    if manifest.model != identity(job.config):
        raise TrainingInputError(
            f"the checkpoint {path} is of another model{_differences(path, job.config)}; give a checkpoint "
            "of this model, or the model that it is of"
        )
    if not holds_state(path):
        raise TrainingInputError(
            f"the checkpoint {path} was saved with --save_only_model and has no state to go on with; start "
            "from its weights with --model_name_or_path, or give a checkpoint with its state"
        )
    if manifest.layout != job.layout and not job.other_layout:
        raise TrainingInputError(
            f"the checkpoint {path} was saved at {manifest.layout}, but this run has {job.layout}; give "
            "--allow_layout_change to go on at this layout, or resume at the one it was saved at"
        )


def identity(config: Any) -> str:
    """Return the identity of a model in manifests.

    Args:
        config: the model's, or the name of its class where it has none.
    """
    return model_digest(_mapping(config))


def _mapping(config: Any) -> Any:
    return {"class": config} if isinstance(config, str) else config


def _differences(path: Path, config: Any) -> str:
    """Say in what the configuration beside the weights differs from this one, "" if it cannot be known."""
    try:
        there = model_content(json.loads((path / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return ""
    here = json.loads(json.dumps(model_content(_mapping(config)), default=str))
    keys = [key for key in there if key in here and there[key] != here[key]]
    if not keys:
        return ""
    told = [f"{key} is {there[key]!r} there and {here[key]!r} here" for key in keys[:_MOST_DIFFERENCES]]
    return f": {', '.join(told)}"
