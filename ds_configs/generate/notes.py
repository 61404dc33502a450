"""What a user should know of a configuration that the file itself cannot say."""

from __future__ import annotations

from ds_configs.generate.options import AUTO, is_own_pipeline, recipes
from ds_configs.generate.request import ConfigRequest


def notes(request: ConfigRequest) -> list[str]:
    """Return sentences about ``request``'s configuration, most important first; often none."""
    found = [
        (
            request.zero.get("overlap_comm", False)
            or (request.stage == 3 and _left_out(request, "overlap_comm")),
            "overlap_comm has given NaN gradients and wrong losses over HCCL; compare some losses with it "
            "off",
        ),
        (
            request.zero.get("allgather_partitions") is not None,
            "DeepSpeed 0.19.8 parses allgather_partitions and never reads it; leave it out",
        ),
        (
            request.pp > 1 and not is_own_pipeline(request.pipeline),
            "DeepSpeed reads no number of stages from the file: build PipelineModule(layers, "
            f"num_stages={request.pp})",
        ),
        (
            request.pp > 1 and is_own_pipeline(request.pipeline),
            "npu_plugins reads the pipeline block: build the model with its split_model or PipelineModule, "
            "and give that this file as config",
        ),
        (
            request.autotp and request.target == "deepspeed",
            "train_batch_size is left out, because DeepSpeed's AutoTP counts tp ranks as data-parallel: a "
            f"step sees 1/{request.tp} of the batch it reports",
        ),
        (
            request.autotp,
            f"AutoTP wants the same batch on all {request.tp} ranks of a group: seed the sampler by the "
            "group, not the rank",
        ),
        (
            request.activation_checkpointing is not None,
            "activation_checkpointing acts only where the program calls "
            "deepspeed.checkpointing.configure(mpu, deepspeed_config=…) and checkpoint()",
        ),
        (
            request.target == "hf" and request.steps_per_print is not None,
            "accelerate overrides steps_per_print so that DeepSpeed never prints; use the Trainer's "
            "--logging_steps",
        ),
        (
            request.target == "hf" and request.precision != AUTO,
            f"the Trainer's own flag must agree: {_flag(request.precision)}",
        ),
        (
            request.target == "deepspeed" and request.optimizer is None,
            f"the file names no optimizer: hand {_own_optimizer(request)}",
        ),
        (
            bool(request.optimizer)
            and recipes("optimizers")[request.optimizer or "AdamW"].untested
            and request.stage > 0,
            f"ZeRO has not been tested with {request.optimizer} by DeepSpeed, so "
            "zero_allow_untested_optimizer is set",
        ),
    ]
    return [sentence for holds, sentence in found if holds]


def _own_optimizer(request: ConfigRequest) -> str:
    """engine.py:2342 refuses a client's optimizer that does not run on the host beside offload."""
    if request.offload_optimizer == "none":
        return "one to deepspeed.initialize"
    return "a DeepSpeedCPUAdam to deepspeed.initialize, which refuses torch's own beside offload"


def _left_out(request: ConfigRequest, key: str) -> bool:
    return key in request.zero and request.zero[key] is None


def _flag(precision: str) -> str:
    return {"fp32": "neither --bf16 nor --fp16"}.get(precision, f"--{precision}")
