"""What is refused instead of being accepted and ignored, each with the reason and the mend."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.generate import ConfigRequest, generate, notes
from ds_configs.generate.options import refused_optimizers

RATE = {"lr": 1e-4}
PLAIN = {"target": "deepspeed", "micro_batch": 1, "optimizer_params": RATE}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"stage": 2, "offload_param": "cpu"},
            "offload_param=cpu needs stage 3, because DeepSpeed ignores it at stage 2",
        ),
        ({"stage": 0, "offload_optimizer": "cpu"}, "offload_optimizer=cpu needs a stage from 1 to 3"),
        (
            {"stage": 2, "offload_optimizer": "nvme", "nvme_path": "/x"},
            "needs stage 3, because DeepSpeed treats it as cpu",
        ),
        ({"stage": 3, "offload_optimizer": "nvme"}, "needs a folder on the drive; give nvme_path"),
        (
            {"stage": 3, "offload_optimizer": "cpu", "nvme_path": "/x"},
            "nvme_path=/x is read only with offload to nvme",
        ),
        ({"stage": 3, "aio": {"queue_depth": 4}}, "aio queue_depth is read only with offload to nvme"),
        ({"stage": 3, "offload_param_params": {"buffer_count": 4}}, "buffer_count is given without a device"),
        (
            {"stage": 3, "offload_param": "cpu", "offload_param_params": {"buffer_count": 4}},
            "offload_param buffer_count is read only with nvme, not with cpu",
        ),
        (
            {"stage": 2, "offload_optimizer": "cpu", "offload_optimizer_params": {"ratio": 0.5}},
            "ratio=0.5 needs stage 3 and cpu, not stage 2",
        ),
        (
            {"stage": 2, "zero": {"sub_group_size": 10}},
            "sub_group_size is read only at stage 3, not at stage 2",
        ),
        ({"stage": 0, "zero": {"overlap_comm": True}}, "overlap_comm is read only at stage 1 or 2 or 3"),
        ({"stage": 2, "pp": 2, **PLAIN}, "pp=2 with stage 2 is refused by DeepSpeed.*use stage 0 or 1"),
        ({"stage": 1, "pp": 2}, "pp=2 has no pipeline to run in under HF's Trainer"),
        ({"stage": 1, "pp": 2, "tp": 2, **PLAIN}, r"AutoTP \(tp=2\) fails in DeepSpeed.*tp_by mpu"),
        (
            {"stage": 1, "pp": 2, "zero": {"overlap_comm": True}, **PLAIN},
            "overlap_comm is switched off by DeepSpeed in a",
        ),
        (
            {"stage": 0, "pp": 2, "precision": "fp32", **PLAIN},
            "clipping an fp32 pipeline at stage 0 counts the first",
        ),
        (
            {"stage": 1, "pp": 2, "pipeline": {"pipe_partitioned": True}, **PLAIN},
            "pipe_partitioned.*but tp is 1",
        ),
        ({"stage": 1, "pipeline": {"use_reentrant": False}}, "use_reentrant is read only with pp > 1"),
        ({"stage": 1, "pipeline": {"stages": 2}, "pp": 2, **PLAIN}, "pipeline stages is not offered here"),
        (
            {"stage": 1, "pp": 2, "pipeline": {"schedule": "1f1b", "virtual_stages": 2}, **PLAIN},
            "pipeline virtual_stages: schedule 1f1b has 1 stage on each rank, not 2; delete it",
        ),
        (
            {"stage": 1, "pp": 2, "pipeline": {"schedule": "zb-v", "pipe_partitioned": True}, **PLAIN},
            "pipeline pipe_partitioned: npu_plugins' pipeline does not do this",
        ),
        (
            {"stage": 1, "pp": 2, "pipeline": {"schedule": "zbv"}, **PLAIN},
            "pipeline schedule is .zbv.; choose one of gpipe",
        ),
        ({"stage": 1, "tp_by": "mpu"}, "tp_by mpu says who divides the layers, but tp is 1"),
        ({"stage": 1, "tp": 2, "tp_by": "mpu"}, "tp_by mpu needs a program that hands its mpu to DeepSpeed"),
        (
            {"stage": 1, "tensor_parallel": {"tp_overlap_comm": True}},
            "tp_overlap_comm is AutoTP's, which is off",
        ),
        ({"stage": 1, "tp": 2, "train_batch": 8}, "train_batch=8 with AutoTP is counted differently"),
        (
            {"stage": 1, "precision": "bf16", "fp16": {"loss_scale": 0}},
            "fp16 loss_scale is given, but the precision is bf16",
        ),
        (
            {"stage": 0, "bf16": {"bf16_master_weights_and_grads": True}},
            "bf16 master weights and states need ZeRO",
        ),
        ({"stage": 1, "bf16": {"bf16_optimizer_states": True}}, "needs bf16_master_weights_and_grads"),
        (
            {"stage": 0, "precision": "bf16", "grad_accum_dtype": "fp32"},
            "grad_accum_dtype=fp32 with precision bf16 has no",
        ),
        (
            {"stage": 1, "optimizer": "Lamb"},
            "optimizer Lamb is wrong at stage 1, because it scales each layer's step",
        ),
        (
            {"stage": 1, "optimizer": "SGD", "offload_optimizer": "cpu"},
            "SGD has no kernel on the host.*AdamW, Adam, Lion",
        ),
        ({"stage": 0, "optimizer": "Lamb", "fp16": {"loss_scale": 128}}, "Lamb needs dynamic loss scaling"),
        (
            {"stage": 0, "optimizer": "SGD", "optimizer_params": {"nesterov": True}},
            "nesterov needs a momentum",
        ),
        ({"stage": 0, "optimizer": "AdamV"}, "optimizer AdamV is not offered here; did you mean Adam"),
        (
            {"stage": 0, "optimizer": "AdamW", "optimizer_params": {"max_grad_norm": 1}},
            "max_grad_norm is not offered",
        ),
        (
            {"stage": 0, "optimizer": None, "optimizer_params": RATE},
            "parameters lr are given, but no optimizer; name it too",
        ),
        (
            {
                "stage": 0,
                "scheduler": "WarmupDecayLR",
                "scheduler_params": {"total_num_steps": 5, "warmup_num_steps": 9},
            },
            "warmup_num_steps=9 is more than total_num_steps=5",
        ),
        (
            {
                "stage": 0,
                "scheduler": "WarmupLR",
                "scheduler_params": {"warmup_max_lr": 1e-3},
                "optimizer_params": RATE,
            },
            "warmup_max_lr=0.001 differs from the optimizer's lr=0.0001, but HF wants",
        ),
        ({"stage": 0, "scheduler": "OneCycle"}, "scheduler OneCycle needs cycle_min_lr"),
        (
            {"stage": 0, "activation_checkpointing": {}},
            "HF's models do not use; give the Trainer --gradient_checkpointing",
        ),
        (
            {"stage": 0, "activation_checkpointing": {"partition_activations": True}, **PLAIN},
            "partition_activations divides activations over tp ranks, but tp is 1",
        ),
        (
            {"stage": 0, "activation_checkpointing": {"cpu_checkpointing": True}, **PLAIN},
            "cpu_checkpointing works only on partitioned activations",
        ),
        ({"stage": 2, "zero": {"reduce_bucket_size": "8"}}, 'reduce_bucket_size is "8"; give a whole number'),
        ({"stage": 2, "zero": {"reduce_bucket_size": 2.5}}, "reduce_bucket_size is 2.5; give a whole number"),
        ({"stage": 2, "zero": {"overlap_comm": 1}}, "overlap_comm is 1; give true or false"),
        (
            {"stage": 2, "zero": {"overlap_comms": True}},
            "zero overlap_comms is not offered here; did you mean overlap_comm",
        ),
        ({"stage": 2, "zero": {"overlap_comm": "auto"}}, 'overlap_comm is "auto", which HF does not fill'),
        ({"stage": 4}, "stage is 4; choose 0"),
        ({"stage": True}, "stage is true; choose 0"),
        ({"stage": 0, "precision": "bf17"}, 'precision is "bf17"; choose one of auto, fp32, bf16, fp16'),
        ({"stage": 0, "clipping": -1}, "clipping is -1; give the largest gradient norm"),
        ({"stage": 0, "micro_batch": 0}, "micro_batch is 0; give a whole number"),
        ({"stage": 0, "world_size": 6, "tp": 4}, "does not divide 6 ranks"),
        ({"stage": 0, "optimizer_params": {"betas": 0.9}}, "betas is 0.9; give two numbers"),
        ({"stage": 0, "optimizer_params": {"betas": [0.9, 1.0]}}, "betas is 1.0; give a number .* below 1"),
        ({"stage": 0, "optimizer_params": {"lr": float("inf")}}, "lr is Infinity; give a finite number"),
        ({"stage": 0, "train_batch": 8, "micro_batch": 3}, "8 is no multiple of micro_batch 3; give"),
        ({"stage": 0, "train_batch": 8, "accumulation": 3, "world_size": 4}, "accumulation 3 × 4 data-par"),
        ({"stage": 0, "train_batch": 7, "world_size": 4}, "no multiple of 4 data-parallel ranks"),
    ],
)
def test_impossible_requests(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DsConfigError, match=sentence) as refusal:
        generate(ConfigRequest(**{"target": "hf", **fields}))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"stage": 1, "micro_batch": "auto"}, "needs a batch in numbers; give micro_batch, or train_batch"),
        ({"stage": 1, "optimizer_params": {}}, "optimizer AdamW needs lr; give lr=…"),
        (
            {"stage": 3},
            "takes its prefetch bucket and persistence threshold from the model's width; give hidden",
        ),
        ({"stage": 1, "scheduler": "WarmupDecayLR"}, "scheduler WarmupDecayLR needs total_num_steps"),
        ({"stage": 1, "optimizer_params": {"lr": None}}, "optimizer AdamW needs lr; give lr=…"),
        (
            {"stage": 1, "train_batch": 100, "world_size": 8},
            "train_batch=100 is no multiple of micro_batch 1 × 8",
        ),
        (
            {"stage": 1, "train_batch": 64, "accumulation": 4, "world_size": 8},
            "train_batch=64 is not micro_batch 1 × accumulation 4 × 8 data-parallel ranks = 32; drop one",
        ),
        (
            {"stage": 1, "train_batch": 7, "accumulation": 2, "micro_batch": "auto"},
            "train_batch=7 is no multiple of accumulation 2; give a multiple of 2",
        ),
        (
            {"stage": 1, "train_batch": 9, "accumulation": 2},
            "is no multiple of micro_batch 1 × accumulation 2",
        ),
        (
            {"stage": 1, "tp": 2, "micro_batch": "auto", "train_batch": 8},
            "AutoTP needs micro_batch and accumulation",
        ),
    ],
)
def test_what_plain_deepspeed_needs_is_asked_for(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DsConfigError, match=sentence):
        generate(ConfigRequest(**{**PLAIN, **fields}))


@pytest.mark.parametrize("name", refused_optimizers())
def test_optimizers_that_an_npu_cannot_run_are_refused(name: str) -> None:
    with pytest.raises(DsConfigError, match=f"optimizer {name.lower()} is refused, because .*; use AdamW"):
        ConfigRequest("hf", 1, optimizer=name.lower())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"stage": 1}, "without 'target' is open; say who reads the file: hf .* or deepspeed"),
        ({"target": "hf"}, "without 'stage' is open; choose 0"),
        ({"target": "hf", "stage": 1, "stagger": 2}, "has no field 'stagger'"),
    ],
)
def test_requests_that_are_open_or_unknown(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DsConfigError, match=sentence):
        ConfigRequest.from_mapping(values)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"target": "hf", "stage": 2, "zero": {"overlap_comm": True}}, "overlap_comm has given NaN"),
        (
            {"target": "hf", "stage": 2, "zero": {"allgather_partitions": True}},
            "parses allgather_partitions and",
        ),
        ({"target": "hf", "stage": 3, "zero": {"overlap_comm": None}}, "overlap_comm has given NaN"),
        ({**PLAIN, "stage": 1, "pp": 4}, r"build PipelineModule\(layers, num_stages=4\)"),
        ({**PLAIN, "stage": 1, "tp": 2}, "train_batch_size is left out"),
        ({"target": "hf", "stage": 1, "tp": 2}, "AutoTP wants the same batch on all 2 ranks"),
        ({**PLAIN, "stage": 1, "activation_checkpointing": {}}, "deepspeed.checkpointing.configure"),
        ({"target": "hf", "stage": 1, "steps_per_print": 5}, "accelerate overrides steps_per_print"),
        ({"target": "hf", "stage": 1, "precision": "bf16"}, "own flag must agree: --bf16"),
        (
            {"target": "deepspeed", "stage": 1, "micro_batch": 1, "optimizer": None},
            "hand one to deepspeed.initialize",
        ),
        (
            {
                "target": "deepspeed",
                "stage": 1,
                "micro_batch": 1,
                "optimizer": None,
                "offload_optimizer": "cpu",
            },
            "hand a DeepSpeedCPUAdam to deepspeed.initialize",
        ),
        ({"target": "hf", "stage": 1, "optimizer": "SGD"}, "zero_allow_untested_optimizer is set"),
    ],
)
def test_what_the_file_cannot_say_is_noted(fields: dict[str, Any], words: str) -> None:
    assert any(re.search(words, note) for note in notes(ConfigRequest(**fields)))


def test_a_plain_preset_has_no_notes() -> None:
    assert notes(ConfigRequest("hf", 2)) == []
