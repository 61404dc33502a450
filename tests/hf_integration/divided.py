"""Training runs with `NpuTrainer`, on ranks of a world or in one process, and the models they train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import TrainerCallback

VOCABULARY, LENGTH = 64, 12
STEPS = 20


def model_config(family: str, layers: int = 4) -> Any:
    """Return the configuration of a small model without dropout."""
    from transformers import AutoConfig

    common: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
    if family == "gpt2":
        sizes: dict[str, Any] = {"n_embd": 32, "n_layer": layers, "n_head": 4, "n_positions": 32}
        dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        return AutoConfig.for_model("gpt2", **common, **sizes, **dropouts)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "tie_word_embeddings": family == "qwen2",
    }
    return AutoConfig.for_model(family, **common, **sizes)


def make_model(family: str, layers: int = 4) -> Any:
    """Return the model with the weights that all runs start from."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    return AutoModelForCausalLM.from_config(model_config(family, layers), dtype=torch.float32)


class Sentences(Dataset):
    """Random sequences of unequal lengths, padded, whose labels leave out padding and some more."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(count):
            length = int(torch.randint(LENGTH // 2, LENGTH + 1, (), generator=generator))
            ids = torch.randint(3, VOCABULARY, (LENGTH,), generator=generator)
            ids[length:] = 0
            mask = (torch.arange(LENGTH) < length).long()
            labels = torch.where(mask.bool(), ids, -100)
            labels[: int(torch.randint(0, 4, (), generator=generator))] = -100
            self.rows.append({"input_ids": ids, "attention_mask": mask, "labels": labels})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.rows[index]


@dataclass(frozen=True)
class Run:
    """One training run, whatever the degrees."""

    family: str = "llama"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    layers: int = 4
    steps: int = STEPS
    micro_batches: int = 4
    """Of a step, over all replicas."""
    rows: int = 76
    """Sequences to train on: 38 micro-batches, so that an epoch ends within a step, for each replica."""
    flags: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    """More arguments of the trainer."""
    kind: Callable[..., Any] | None = None
    """Class of the trainer; by default `NpuTrainer`."""
    degrees_by_flag: bool = True
    """Whether tp and pp are flags; else the configuration gives them."""
    weights: str | None = None
    """Directory with the weights of a model that is built on the meta device."""
    trains: bool = True
    """Whether it trains at all."""
    stop_at: int | None = None
    """Step after which training stops, as if it had been interrupted."""
    resume: str | bool | None = None
    """Checkpoint to go on from; True: the newest."""
    after: Callable[[Any], Any] | None = None
    """Called with the trainer once it has trained; its result is returned with the losses."""

    def at(self, tp: int, pp: int, dp: int) -> Run:
        """Return the same run at these degrees."""
        return replace(self, tp=tp, pp=pp, dp=dp)

    def arguments(self, folder: Path, use_cpu: bool) -> Any:
        """Return the arguments of the trainer."""
        from hf_integration.npu_arguments import NpuTrainingArguments

        degrees: dict[str, Any] = {
            "tensor_model_parallel_size": self.tp if self.degrees_by_flag else None,
            "pipeline_model_parallel_size": self.pp if self.degrees_by_flag else None,
        }
        usual: dict[str, Any] = {
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 2,
            "gradient_accumulation_steps": self.micro_batches // self.dp,
            "learning_rate": 3e-3,
            "warmup_steps": 4,
            "weight_decay": 0.01,
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
        }
        return NpuTrainingArguments(
            output_dir=str(folder),
            use_cpu=use_cpu,
            max_steps=self.steps,
            **{**usual, **degrees, **self.flags},
        )


class StopAt(TrainerCallback):
    """Stops training after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop, once the step has been saved."""
        control.should_training_stop |= state.global_step >= self.step


@dataclass
class Record:
    """What a run showed on one rank."""

    log: list[dict[str, Any]]
    after: Any = None

    def values(self, key: str) -> list[float]:
        """Return all values of one key of the log."""
        return [entry[key] for entry in self.log if key in entry]


def train(run: Run, folder: Path, use_cpu: bool = True) -> Record:
    """Train in this process, which is one rank of the run or all of it."""
    from hf_integration.npu_trainer import NpuTrainer

    options: dict[str, Any] = {
        "args": run.arguments(folder, use_cpu),
        "train_dataset": Sentences(run.rows, seed=1),
        "eval_dataset": Sentences(11, seed=2),
        "weights": run.weights,
    }
    with torch.device("cpu" if run.weights is None else "meta"):
        options["model"] = make_model(run.family, run.layers)
    trainer = (run.kind or NpuTrainer)(**{**options, **run.trainer})
    if run.stop_at is not None:
        trainer.add_callback(StopAt(run.stop_at))
    if run.trains:
        trainer.train(resume_from_checkpoint=run.resume)
    after = None if run.after is None else run.after(trainer)
    record = Record(trainer.state.log_history, after)
    if trainer.mesh is not None:
        trainer.deepspeed.destroy()
        trainer.mesh.destroy()
    return record


def train_on_rank(run: Run, folder: Path, backend: str) -> Record:
    """Train on a rank of a kept world."""
    if backend == "gloo":
        from tests.pipeline.running import use_cpu

        use_cpu()
    return train(run, folder, backend == "gloo")
