"""What HF's Trainer and accelerate do to a configuration, in their order.

Read from transformers 5.24 (``integrations/deepspeed.py``: ``trainer_config_process`` and ``_finalize``), and
from accelerate 1.15 (``DeepSpeedPlugin``: ``__post_init__``, ``set_mixed_precision``; and
``Accelerator._prepare_deepspeed``).
"""

from __future__ import annotations

from ds_configs.errors import DsConfigError
from ds_configs.resolve.document import Document, Filler
from ds_configs.resolve.run import TrainingRun
from ds_configs.resolve.width import Width

REDUCE_BUCKET = "zero_optimization.reduce_bucket_size"
PREFETCH = "zero_optimization.stage3_prefetch_bucket_size"
PERSISTENCE = "zero_optimization.stage3_param_persistence_threshold"
GATHER = "zero_optimization.stage3_gather_16bit_weights_on_model_save"


def process(document: Document, run: TrainingRun) -> None:
    """Fill what TrainingArguments alone decide (``trainer_config_process``)."""
    mbs, gas = run.per_device_train_batch_size, run.gradient_accumulation_steps
    product = f"{run.world_size} ranks × {mbs} × {gas}"
    for key, value, flag in (
        ("train_micro_batch_size_per_gpu", mbs, "--per_device_train_batch_size"),
        ("gradient_accumulation_steps", gas, "--gradient_accumulation_steps"),
    ):
        document.match(key, value, flag, flag)
    document.match("train_batch_size", run.train_batch_size, product, f"the flags ({product})")
    betas = [run.adam_beta1, run.adam_beta2]
    for key, filled, flag in (
        ("gradient_clipping", run.max_grad_norm, "--max_grad_norm"),
        ("optimizer.params.lr", run.learning_rate, "--learning_rate"),
        ("optimizer.params.betas", betas, "--adam_beta1 and --adam_beta2"),
        ("optimizer.params.eps", run.adam_epsilon, "--adam_epsilon"),
        ("optimizer.params.weight_decay", run.weight_decay, "--weight_decay"),
        ("scheduler.params.warmup_max_lr", run.learning_rate, "--learning_rate"),
        ("fp16.enabled", run.fp16 or run.fp16_full_eval, "--fp16"),
        ("bf16.enabled", run.bf16 or run.bf16_full_eval, "--bf16"),
    ):
        document.match(key, filled, flag, flag)
    if document.is_auto("scheduler.params.warmup_min_lr"):
        document.fill("scheduler.params.warmup_min_lr", 0, "HF", "a constant of HF's")
    if run.save_on_each_node:
        checkpoint = document.config.setdefault("checkpoint", {})
        if not isinstance(checkpoint, dict):
            raise DsConfigError(
                f"checkpoint is {checkpoint!r}, where an object with keys belongs; mend it first"
            )
        document.fill("checkpoint.use_node_local_storage", True, "HF", "--save_on_each_node")


def plug_in(document: Document, run: TrainingRun) -> None:
    """Fill and add what accelerate's plugin does when it takes the configuration over."""
    config = document.config
    if "gradient_accumulation_steps" not in config:
        document.fill("gradient_accumulation_steps", 1, "accelerate", "a constant: the key was missing")
    if not isinstance(config.get("zero_optimization"), dict):
        raise DsConfigError(
            "the configuration has no zero_optimization section, without which accelerate refuses it; add "
            '{"zero_optimization": {"stage": 0}}'
        )
    for key, value in (
        ("zero_optimization.stage", 2),
        ("zero_optimization.offload_optimizer.device", "none"),
        ("zero_optimization.offload_param.device", "none"),
        (GATHER, False),
    ):
        if document.is_auto(key):
            document.fill(key, value, "accelerate", "a constant of its plugin's")
    _paths(document)
    _mixed_precision(document, run)


def _paths(document: Document) -> None:
    """An "auto" path becomes the word none: harmless where nothing is offloaded to files, wrong elsewhere."""
    for name in ("offload_optimizer", "offload_param"):
        key = f"zero_optimization.{name}.nvme_path"
        if not document.is_auto(key):
            continue
        if document.get(f"zero_optimization.{name}.device") == "nvme":
            raise DsConfigError(
                f'{key} is "auto", which accelerate turns into a folder called none; write the folder on the '
                "drive"
            )
        document.fill(key, "none", "accelerate", "a constant of its plugin's")


def _mixed_precision(document: Document, run: TrainingRun) -> None:
    """The Trainer's flag turns on a precision whose section is missing (``set_mixed_precision``)."""
    kind = run.mixed_precision
    if kind == "no":
        return
    if kind not in document.config:
        section = {"enabled": True, **({"auto_cast": True} if kind == "fp16" else {})}
        document.fill(kind, section, "accelerate", f"--{kind}: the section was missing")
    other = "bf16" if kind == "fp16" else "fp16"
    if str(document.get(f"{other}.enabled", False)).lower() == "true":
        raise DsConfigError(
            f"{other}.enabled is true in the file, but the run is --{kind}, which accelerate refuses; use "
            f"--{other}, or "
            'write "auto" in the file'
        )


def finalize(document: Document, run: TrainingRun, width: Width | None) -> None:
    """Fill what needs the model and the number of steps (``trainer_config_finalize``)."""
    stage3 = document.get("zero_optimization.stage") == 3
    waiting = [key for key in (REDUCE_BUCKET, PREFETCH, PERSISTENCE) if document.is_auto(key)]
    if waiting:
        if width is None:
            raise DsConfigError(
                f'{", ".join(waiting)}: "auto" follows the model\'s width; give --model or --hidden'
            )
        hidden = width.hidden
        if document.is_auto(REDUCE_BUCKET):
            document.fill(REDUCE_BUCKET, hidden**2, "HF", f"hidden² ({hidden}: {width.source})")
        for key, value, formula in (
            (PREFETCH, int(0.9 * hidden * hidden), "0.9 hidden²"),
            (PERSISTENCE, 10 * hidden, "10 hidden"),
        ):
            # Below stage 3 HF leaves both to accelerate, which fills them where it finds the width.
            filler: Filler = "HF" if stage3 else "accelerate" if width.plain else "nobody: ds-config"
            if document.is_auto(key):
                document.fill(key, value, filler, f"{formula} ({width.source})")
    _scheduler(document, run)
    if document.mismatches:
        raise DsConfigError(
            f'{"; ".join(document.mismatches)}: HF refuses a file that its flags contradict; write "auto" '
            "in the file, or change the flags"
        )


def _scheduler(document: Document, run: TrainingRun) -> None:
    params = "scheduler.params."
    total = run.total_steps()
    warmup = run.warmup(total)
    for name, value in (("total_num_steps", total), ("warmup_num_steps", warmup)):
        if document.is_auto(params + name) and value is None:
            raise DsConfigError(
                f'{params}{name} is "auto", which takes the number of steps; give --max_steps, or '
                "--num_examples and --num_train_epochs"
            )
    source = (
        "--max_steps"
        if run.max_steps > 0
        else f"{run.num_train_epochs:g} epochs of {run.num_examples} examples"
    )
    if total is not None:
        document.match(f"{params}total_num_steps", total, source, source)
    if warmup is not None:
        document.match(
            f"{params}warmup_num_steps", max(1, warmup), "--warmup_steps, 1 or more", "--warmup_steps"
        )
