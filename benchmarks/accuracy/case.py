"""One combination: a small model and a job, as DeepSpeed, transformers and the memory model are told it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ds_configs.memory import Buckets, MemoryJob
from ds_configs.memory.settings import BUCKET_KEYS, SWITCH_KEYS
from ds_configs.models import ModelShape
from ds_configs.models.hf_config import shape_of_config
from ds_configs.parallel import ParallelConfig

CASES = Path(__file__).with_name("cases.json")
# Small models need small buckets: DeepSpeed's default of 5e8 elements would be all that there is to measure.
SMALL_BUCKET = 2_000_000


@dataclass(frozen=True)
class Case:
    """A row of ``cases.json``; the defaults are what most rows share."""

    name: str
    family: str = "llama"
    layers: int = 4
    hidden: int = 320
    ffn: int = 864
    heads: int = 5
    kv_heads: int = 5
    vocab: int = 4096
    tied: bool = False
    stage: int = 0
    dtype: str = "bf16"
    gradient_dtype: str | None = None
    dp: int = 2
    tp: int = 1
    pp: int = 1
    micro_batch: int = 2
    sequence: int = 256
    accumulation: int = 1
    recomputation: str = "none"
    attention: str = "flash"
    offload_optimizer: str = "none"
    offload_param: str = "none"
    buckets: dict[str, Any] = field(default_factory=dict)
    """Fields of Buckets other than a reduce bucket of 2e6."""

    @property
    def ranks(self) -> int:
        """World size."""
        return self.dp * self.tp * self.pp

    def hf_config(self) -> dict[str, Any]:
        """Return the model's config.json."""
        sizes: dict[str, Any] = {
            "model_type": self.family,
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": self.tied,
        }
        if self.family == "gpt2":
            return {**sizes, "n_inner": self.ffn, "bos_token_id": 0, "eos_token_id": 0}
        return {**sizes, "intermediate_size": self.ffn, "num_key_value_heads": self.kv_heads}

    def shape(self) -> ModelShape:
        """Return the model's shape, read from its config.json as the tool reads it."""
        return shape_of_config(self.hf_config(), self.name)

    def bucket_sizes(self) -> Buckets:
        """Return DeepSpeed's buffers."""
        return Buckets(**{"reduce": SMALL_BUCKET, **self.buckets})

    def job(self) -> MemoryJob:
        """Return what the memory model is asked: what bears the same name is the same."""
        shared = {each.name for each in fields(MemoryJob)} & {each.name for each in fields(self)}
        values = {name: getattr(self, name) for name in shared - {"buckets"}}
        parallel = ParallelConfig(tp=self.tp, pp=self.pp, dp=self.dp)
        return MemoryJob(shape=self.shape(), parallel=parallel, buckets=self.bucket_sizes(), **values)

    def ds_config(self, folder: str) -> dict[str, Any]:
        """Return DeepSpeed's configuration; ``folder`` is where nvme offload may write."""
        buckets = self.bucket_sizes()
        switches = {key: getattr(buckets, key) for key in SWITCH_KEYS}
        zero: dict[str, Any] = {
            "stage": self.stage,
            **{key: getattr(buckets, name) for name, key in BUCKET_KEYS.items()},
            **{key: value for key, value in switches.items() if value is not None},
        }
        for key in ("offload_optimizer", "offload_param"):
            if getattr(self, key) != "none":
                zero[key] = {"device": getattr(self, key), "pin_memory": True}
                if getattr(self, key) == "nvme":
                    zero[key]["nvme_path"] = folder
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zero_optimization": zero,
        }
        if self.dtype != "fp32":
            config[self.dtype] = {"enabled": True}
        if self.gradient_dtype:
            config["data_types"] = {"grad_accum_dtype": self.gradient_dtype}
        if self.tp > 1:
            config["tensor_parallel"] = {"autotp_size": self.tp}
        if self.pp > 1:
            # As `ds-config generate` writes it: DeepSpeed's default, reentrant recomputation, gives no
            # gradient to a stage whose first layer takes token ids, and the next stage waits for ever.
            config["pipeline"] = {"use_reentrant": False}
        return config


def load_cases() -> list[Case]:
    """Return all combinations."""
    return [Case(**row) for row in json.loads(CASES.read_text(encoding="utf-8"))]
