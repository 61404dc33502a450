"""`--preflight`: before anything is built, the ranks of a training meet, are compared, and communicate."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from ds_configs.parallel import ParallelConfig
from hf_integration.device import visible_device_type
from hf_integration.errors import TrainingInputError
from npu_plugins.autoload import platform
from npu_plugins.comm import ProcessMesh
from npu_plugins.comm.timeouts import setting
from npu_plugins.diagnostics.preflight import (
    Fact,
    Preflight,
    PreflightError,
    Report,
    Settings,
    device_facts,
    environment_facts,
    facts_of,
    open_store,
    random_facts,
    tell_on_stderr,
    version_facts,
)

MAY_DIFFER = (
    "local_rank", "deepspeed", "disable_tqdm", "report_to", "run_name", "project", "logging_dir", "log_level",
    "log_level_replica", "hub_token", "push_to_hub", "hub_model_id", "trackio_space_id", "trackio_bucket_id",
    "trackio_static_space_id",
)  # fmt: skip
"""Arguments that say what one rank prints, or reports to whom; scripts give them to rank 0 only."""
NO_HARM = ("output_dir", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor")
"""Those that may be right to differ: a folder of each host, workers by its cores."""
SAME_ARGUMENTS = "start all ranks with the same command line"
SAME_FILE = "copy the same file to all hosts, or put it where all see it"
SAME_DATA = (
    "let all ranks read the same files: where they differ in length, some end an epoch before the others"
)


@dataclass
class PreflightArguments:
    """Whether ranks are looked at before they train."""

    preflight: bool = field(
        default=False,
        metadata={
            "help": "Before the model is built, let all ranks meet, compare versions, configuration, seeds "
            "and data, communicate in each group, measure links and clocks; end if one is not ready."
        },
    )

    def wants_preflight(self) -> bool:
        """Return whether there is to be one.

        Raises:
            TrainingInputError: of a run that has no ranks.
        """
        if self.preflight and getattr(self, "dry_run", False):
            raise TrainingInputError(
                "--preflight needs the ranks of a job, and --dry_run has none; leave one out"
            )
        return self.preflight


class TrainingPreflight:
    """The preflight of `NpuTrainingArguments`: met before the process group is made, finished after."""

    def __init__(self, config: ParallelConfig, use_cpu: bool) -> None:
        """Meet the other ranks.

        Args:
            config: the degrees.
            use_cpu: whether the training is to stay on the host.

        Raises:
            PreflightError: some have not come.
            StoreLostError: the job's store cannot be reached.
        """
        settings = settings_of(os.environ)
        # Kept until the process group is there: rank 0 may serve it.
        self.store = _store(settings.limit)
        rank = int(os.environ.get("RANK") or 0)
        kind = "cpu" if use_cpu else visible_device_type() or "cpu"
        self.flight = Preflight(self.store.clone(), rank, config, settings, platform=_platform(kind))
        self.config = config
        _ending_if_stuck(self.flight.meet)

    def finish(self, args: Any, config: Mapping[str, Any] | None) -> Report:
        """Compare and communicate, with the process group that torch now has.

        Args:
            args: the training's.
            config: DeepSpeed's, if there is one.

        Raises:
            PreflightError: the ranks are not ready.
        """
        return _ending_if_stuck(lambda: self._finish(args, config))

    def _finish(self, args: Any, config: Mapping[str, Any] | None) -> Report:
        flight, device = self.flight, _device(args)
        facts = [*version_facts(), *environment_facts(), *device_facts(device, flight.here)]
        flight.compare("settings", [*facts, *argument_facts(args.to_dict(), config)])
        if self.config.world_size > 1:
            mesh = flight.communicate(lambda: ProcessMesh.create(self.config, device=device))
            mesh.destroy()
            flight.compare_clocks()
        return flight.finish()


def compare_inputs(
    args: Any,
    *,
    model_config: Any = None,
    train: Any = None,
    evaluation: Any = None,
    tokenizer: Any = None,
    rows: bool = False,
) -> None:
    """Compare what is trained, and on what, and where random numbers start; every rank must call this.

    It says nothing where all is alike.

    Args:
        args: the training's; the seeds have been set.
        model_config: of the model, as transformers has it.
        train, evaluation: data sets; of those that know their length that is compared.
        tokenizer: whose tokens are compared.
        rows: whether the first and last row of the data sets are compared too: where reading them twice gives
            the same, and draws no random numbers.

    Raises:
        PreflightError: something differs.
    """
    config = getattr(args, "parallel_config", None) or ParallelConfig(dp=args.world_size)
    if config.world_size == 1:
        return
    store = dist.distributed_c10d._get_default_store().clone()  # torch 2.13 has no public way to it
    rank = dist.get_rank()

    def tell(report: Report) -> None:
        if report.findings:
            tell_on_stderr(report)

    facts = random_facts(_device(args))
    if hasattr(model_config, "to_dict"):
        facts += facts_of("model", model_config.to_dict(), "give all ranks the same model")
    for name, data in (("train_dataset", train), ("eval_dataset", evaluation)):
        facts += data_facts(name, data, rows)
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        tokens = _digest(sorted(tokenizer.get_vocab().items()))
        facts.append(Fact("data", "the tokenizer's tokens", tokens, mend="give all ranks the same tokenizer"))
    flight = Preflight(store, rank, config, settings_of(os.environ), tell, _platform(_device(args).type))

    def compare() -> None:
        flight.meet()
        flight.compare("inputs", facts)
        flight.finish()

    _ending_if_stuck(compare)


def compare_inputs_of(trainer: Any) -> None:
    """Compare what a Trainer of transformers was given, and where random numbers start; on every rank.

    Raises:
        PreflightError: something differs.
    """
    compare_inputs(
        trainer.args,
        model_config=getattr(trainer.model, "config", None),
        train=trainer.train_dataset,
        evaluation=trainer.eval_dataset,
        tokenizer=trainer.processing_class,
    )


def settings_of(environ: Mapping[str, str]) -> Settings:
    """Return how long to wait: HCCL_TIMEOUT, else as `npu-plugins preflight` does."""
    return Settings(limit=float(setting(environ) or Settings.limit))


def argument_facts(arguments: Mapping[str, Any], config: Mapping[str, Any] | None) -> list[Fact]:
    """Return a training's arguments and its DeepSpeed configuration as facts.

    Args:
        arguments: of `TrainingArguments.to_dict`.
        config: DeepSpeed's, if there is one: its content counts, not its name.
    """
    found = []
    for name, value in arguments.items():
        if name not in MAY_DIFFER:
            level = "warning" if name in NO_HARM else "error"
            found += facts_of("arguments", {name: value}, SAME_ARGUMENTS, level)
    return found + ([] if config is None else facts_of("ds_config", config, SAME_FILE))


def data_facts(name: str, data: Any, rows: bool) -> list[Fact]:
    """Return the length of a data set as a fact, and on demand its first and last row."""
    if not isinstance(data, Sized):
        return []
    found = [Fact("data", f"the length of {name}", str(len(data)), mend=SAME_DATA)]
    if rows and len(data):
        ends: Any = data
        digest = _digest([_plain(ends[0]), _plain(ends[len(data) - 1])])
        found.append(Fact("data", f"the first and last row of {name}", digest, mend=SAME_DATA))
    return found


def _store(limit: float) -> Any:
    """The job's store: torch's if there is a process group, else the launcher's; of one process its own."""
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()  # torch 2.13 has no public way to it
    if "RANK" not in os.environ:
        return dist.HashStore()
    return open_store(os.environ, limit)


def _ending_if_stuck(work: Callable[[], Any]) -> Any:
    """Do `work`; end the process if a communication in it hangs, for which tearing down would wait."""
    try:
        return work()
    except PreflightError as error:
        if error.stuck:
            _end()
        raise


def _end() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _device(args: Any) -> torch.device:
    device: torch.device = args.device  # accelerate numbers even the CPU
    return torch.device("cpu") if device.type == "cpu" else device


def _platform(kind: str) -> str:
    """What ranks communicate over, as `npu-plugins preflight` tells it."""
    backend = dist.Backend.default_device_backend_map.get(kind, kind)
    return f"{backend} (simulated NPUs)" if kind == "npu" and platform() != "npu" else backend


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return {str(key): _plain(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
