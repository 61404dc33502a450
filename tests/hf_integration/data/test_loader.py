"""The loader inside the Trainer: same samples at every step as the Trainer's own, also after a resume."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import skip_first_batches
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from hf_integration.data.collator import Collator
from hf_integration.data.loader import check_sampling, replica_loader
from hf_integration.data.sampler import Replica
from hf_integration.errors import TrainingInputError

SAMPLES = [
    {"input_ids": torch.arange(2 + i % 3) + i, "labels": torch.arange(2 + i % 3) + i} for i in range(26)
]


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    """Return arguments for training on the CPU."""
    return TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", per_device_train_batch_size=4, **changes
    )


def trainer(args: TrainingArguments) -> Trainer:
    """Return the Trainer itself with a model of a few numbers."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    return Trainer(LlamaForCausalLM(config), args, train_dataset=SAMPLES, data_collator=Collator())


def first_tokens(loader: DataLoader, epoch: int) -> list[list[int]]:
    """Return the batches of an epoch, each sample by its first token, which is its number."""
    loader.set_epoch(epoch)
    return [batch["input_ids"][:, 0].tolist() for batch in loader]


@pytest.mark.parametrize("changes", [{}, {"data_seed": 3}, {"train_sampling_strategy": "sequential"}])
def test_batches_are_those_of_the_trainer_on_one_process(tmp_path: Path, changes: dict[str, Any]) -> None:
    args = arguments(tmp_path, seed=11, dataloader_drop_last=True, **changes)
    own = trainer(args).get_train_dataloader()
    halves = [
        replica_loader(
            arguments(tmp_path, seed=11, dataloader_drop_last=True, **changes),
            SAMPLES,
            Collator(),
            Replica(rank, 2),
        )
        for rank in (0, 1)
    ]
    whole = replica_loader(args, SAMPLES, Collator(), Replica())
    for epoch in (0, 1):
        expected = first_tokens(own, epoch)
        assert first_tokens(whole, epoch) == expected
        found = [sum(pair, []) for pair in zip(*(first_tokens(half, epoch) for half in halves), strict=True)]
        assert found == [expected[i] + expected[i + 1] for i in range(0, 6, 2)]


def test_resume_of_the_trainer_skips_what_was_read(tmp_path: Path) -> None:
    loader = replica_loader(arguments(tmp_path), SAMPLES, Collator(), Replica(1, 2))
    expected = first_tokens(loader, 2)
    skipping = skip_first_batches(loader, 3)
    # What Trainer._run_epoch does next, to loaders that do not take the epoch themselves.
    assert not hasattr(skipping, "set_epoch")
    skipping.batch_sampler.batch_sampler.set_epoch(2)
    assert [batch["input_ids"][:, 0].tolist() for batch in skipping] == expected[3:]


def test_workers_read_the_same(tmp_path: Path) -> None:
    alone = replica_loader(arguments(tmp_path), SAMPLES, Collator(), Replica(1, 2))
    helped = replica_loader(arguments(tmp_path, dataloader_num_workers=1), SAMPLES, Collator(), Replica(1, 2))
    assert first_tokens(alone, 1) == first_tokens(helped, 1)  # the last batch has fillers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "--train_sampling_strategy group_by_length is not"),
        ({"accelerator_config": {"split_batches": True}}, "accelerator_config's split_batches is True"),
        ({"accelerator_config": {"use_seedable_sampler": False}}, "use_seedable_sampler is False"),
    ],
)
def test_settings_that_would_be_passed_over_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainingInputError, match=message):
        check_sampling(arguments(tmp_path, **changes))


def test_every_setting_of_accelerates_division_is_looked_at(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    check_sampling(args)
    for name, value in (("even_batches", False), ("dispatch_batches", True)):
        changed = SimpleNamespace(**{**vars(args.accelerator_config), name: value})
        with pytest.raises(TrainingInputError, match=f"accelerator_config's {name} is {value}"):
            check_sampling(SimpleNamespace(train_sampling_strategy="random", accelerator_config=changed))
