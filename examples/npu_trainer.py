"""Trains a small Llama with `NpuTrainer`; every flag of `TrainingArguments`, and the degrees, are its flags.

On four ranks of which 2 share each matrix and 2 the layers, here simulated (leave NPU_SIM out on a card)::

    NPU_SIM=4 deepspeed --num_gpus 4 examples/npu_trainer.py --output_dir outputs/example --max_steps 20 \
        --tensor_model_parallel_size 2 --pipeline_model_parallel_size 2 --gradient_accumulation_steps 4

Eight ranks make two replicas of that; without the degrees each rank is a replica, as with the plain Trainer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, LlamaConfig

from hf_integration.npu_arguments import NpuTrainingArguments
from hf_integration.npu_trainer import NpuTrainer

VOCABULARY, LENGTH = 64, 32


def countings(rows: int) -> list[dict[str, list[int]]]:
    """Return sequences in which each token is the one before it plus a step of its own, modulo 64."""
    generator = torch.Generator().manual_seed(0)
    firsts = torch.randint(VOCABULARY, (rows,), generator=generator)
    steps = torch.randint(1, 4, (rows,), generator=generator)
    tokens = (firsts[:, None] + steps[:, None] * torch.arange(LENGTH)) % VOCABULARY
    return [{"input_ids": row, "labels": row} for row in tokens.tolist()]


def main(argv: Sequence[str] | None = None) -> None:
    """Train, evaluate and save one plain directory; every rank runs this."""
    (args,) = HfArgumentParser([NpuTrainingArguments]).parse_args_into_dataclasses(argv)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    # A divided model needs no weights here: each rank draws those of its part, the same at any degrees.
    with torch.device("meta" if args.parallel.divides else "cpu"):
        model = AutoModelForCausalLM.from_config(config)
    trainer = NpuTrainer(model=model, args=args, train_dataset=countings(512), eval_dataset=countings(16))
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.log_metrics("eval", trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
