"""What the HF Trainer offers and a divided model cannot have: refused in a sentence, never passed over."""

from __future__ import annotations

from typing import Any

from transformers import TrainingArguments

from hf_integration.data.loader import UNUSED
from hf_integration.errors import TrainingInputError

ELEMENTWISE_OPTIMIZERS = (
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_torch_npu_fused",
    "sgd",
    "adagrad",
    "rmsprop",
)
"""Those that treat every number by itself, so that a slice of a matrix is stepped as within the whole one."""

OF_TORCHS_DDP = (
    "ddp_find_unused_parameters",
    "ddp_bucket_cap_mb",
    "ddp_broadcast_buffers",
    "ddp_static_graph",
)

REFUSED: dict[str, str] = {
    "auto_find_batch_size": "would build the engine again at every try; set per_device_train_batch_size",
    "torch_compile": "compiles a whole model, of which a rank has a part; leave it out",
    "use_liger_kernel": "replaces modules of the whole model, of which a rank has a part; leave it out",
    "neftune_noise_alpha": "adds its noise by a hook on the whole model's embedding; leave it out",
    "fp16_full_eval": "would cast the weights that are trained; use --fp16 or --bf16 for the whole run",
    "bf16_full_eval": "would cast the weights that are trained; use --fp16 or --bf16 for the whole run",
    "eval_use_gather_object": "gathers from every rank, not once from each replica; leave it out",
    "fsdp": "divides the model in its own way; leave it out, or the degrees",
    "parallelism_config": "is accelerate's way to divide a model; leave it out, or the degrees",
}


def check_arguments(args: TrainingArguments) -> None:
    """Refuse settings that would be ignored, or go wrong, where tp × pp is more than 1.

    Raises:
        TrainingInputError: with the setting, its value and what to do.
    """
    for name, reason in REFUSED.items():
        value = getattr(args, name, None)
        if value:
            _refuse(name, value, reason)
    if args.debug:
        _refuse("debug", [str(each.value) for each in args.debug], "watches a whole model; leave it out")
    if args.optim not in ELEMENTWISE_OPTIMIZERS:
        names = ", ".join(ELEMENTWISE_OPTIMIZERS)
        _refuse("optim", str(args.optim.value), f"may need whole matrices; choose one of {names}")
    if args.train_sampling_strategy == "batch_rebalance":
        _refuse(
            "train_sampling_strategy", "batch_rebalance", "counts every rank as a replica; choose another"
        )
    if args.save_only_model and args.load_best_model_at_end:
        _refuse("save_only_model", True, "leaves nothing that load_best_model_at_end could load; drop one")
    _check_loading(args)
    _check_recomputation(args)


def _check_loading(args: TrainingArguments) -> None:
    """Batches are dealt to replicas here, and gradients reduced by the engine."""
    for name, default in UNUSED.items():
        value = getattr(args.accelerator_config, name, default)
        if value != default:
            _refuse(
                f"accelerator_config's {name}", value, "is not looked at in dealing batches; leave it out"
            )
    for name in OF_TORCHS_DDP:
        value = getattr(args, name, None)
        if value is not None:
            _refuse(name, value, "concerns torch's DistributedDataParallel, not DeepSpeed; leave it out")


def _check_recomputation(args: Any) -> None:
    """HF's recomputation becomes the pipeline's, which knows no further settings of it."""
    # By the older names, the only ones in transformers 5.20; later releases let them mirror the new ones.
    if not args.gradient_checkpointing or args.parallel.pp == 1:
        return
    settings = dict(args.gradient_checkpointing_kwargs or {})
    if settings.pop("use_reentrant", False):
        _refuse("use_reentrant", True, "loses gradients in a pipeline; leave it out or set it to false")
    if settings:
        _refuse(
            "gradient_checkpointing_kwargs", settings, "is for a whole model; give --recomputation instead"
        )


def _refuse(name: str, value: Any, reason: str) -> None:
    raise TrainingInputError(f"{name} is {value!r}, which with tensor or pipeline parallelism {reason}")
