"""The training program's Trainer: which batches a rank reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, LlamaConfig, TrainingArguments

from hf_integration.data import Collator, Replica, TrainingData
from hf_integration.data.sequences import TokenStream, cut_into_blocks
from hf_integration.errors import TrainingInputError
from hf_integration.trainer import CausalLMTrainer

SAMPLES = 9


class OneOfTwo(CausalLMTrainer):
    """The trainer of the second of two replicas, without the first."""

    replica = Replica(1, 2)


def make(kind: type[CausalLMTrainer], folder: Path, **changes: Any) -> CausalLMTrainer:
    """Return a trainer of a model of a few numbers on the blocks [0, 1], [2, 3], …"""
    blocks = cut_into_blocks(TokenStream([np.arange(2 * SAMPLES)]), 2)
    data = TrainingData(blocks, blocks, Collator(mask=False), tokens_per_row=2, tokens_per_byte=None)
    config = LlamaConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    args = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", per_device_train_batch_size=2, **changes
    )
    model = AutoModelForCausalLM.from_config(config)
    return kind(model=model, args=args, data=data, log_file=folder / "log.jsonl", platform="cpu")


def test_a_rank_reads_its_replicas_share(tmp_path: Path) -> None:
    whole = make(CausalLMTrainer, tmp_path, gradient_accumulation_steps=2)
    assert whole.replica == Replica(0, 1)
    share = make(OneOfTwo, tmp_path).get_train_dataloader()
    batches = [batch["input_ids"].tolist() for batch in whole.get_train_dataloader()]
    assert [batch["input_ids"].tolist() for batch in share][:2] == batches[1:4:2]


def test_an_empty_share_is_refused_where_it_would_have_no_loss(tmp_path: Path) -> None:
    trainer = make(OneOfTwo, tmp_path)
    *_, last = trainer.get_train_dataloader()
    assert set(last["labels"].flatten().tolist()) == {-100}
    trainer.args.average_tokens_across_devices = False
    with pytest.raises(TrainingInputError, match="since --average_tokens_across_devices is false, and of 2"):
        trainer.get_train_dataloader()
    trainer.args.average_tokens_across_devices = True
    trainer.model_accepts_loss_kwargs = False
    with pytest.raises(TrainingInputError, match="since LlamaForCausalLM takes no num_items_in_batch"):
        trainer.get_train_dataloader()
    trainer.args.dataloader_drop_last = True
    assert len(trainer.get_train_dataloader()) == 2
