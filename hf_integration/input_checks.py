"""What a script of one's own hands to `NpuTrainer`: refused in a sentence where the model cannot take it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PretrainedConfig, PreTrainedTokenizerBase, Trainer

from hf_integration.errors import TrainingInputError
from hf_integration.models import longest_sequence, needed_rows


def check_tokenizer(tokenizer: Any, config: Any) -> None:
    """Refuse a tokenizer with ids that the model's embedding has no rows for.

    On an NPU such an id reads whatever lies behind the embedding.

    Args:
        tokenizer: the Trainer's ``processing_class``; anything but a tokenizer passes.
        config: of the model; anything but transformers' passes.

    Raises:
        TrainingInputError: with both numbers.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or not isinstance(config, PretrainedConfig):
        return
    rows, needed = getattr(config.get_text_config(), "vocab_size", None), needed_rows(tokenizer)
    if rows is not None and needed > rows:
        raise TrainingInputError(
            f"the tokenizer has {needed} tokens but the embedding of the model only {rows} rows; give the "
            f"tokenizer that the model was made with, or call model.resize_token_embeddings({needed}) before"
        )


def check_not_empty(dataset: Any, name: str) -> None:
    """Refuse a data set without a sample; one that does not know its length passes.

    Raises:
        TrainingInputError: with ``name``, its argument of the Trainer.
    """
    if isinstance(dataset, Sized) and len(dataset) == 0:
        raise TrainingInputError(f"{name} is empty; give it at least one sample")


def longest_row(batches: Iterable[Mapping[str, Any]], limit: int) -> int:
    """Return the tokens of the longest sequence in ``batches``, of a row that holds several of the longest.

    Args:
        batches: with ``input_ids`` `[batch, seq]`, and ``position_ids`` where rows are packed.
        limit: shorter rows are not looked into.
    """
    longest = 0
    for batch in batches:
        ids, positions = batch.get("input_ids"), batch.get("position_ids")
        if not isinstance(ids, torch.Tensor) or ids.numel() == 0:
            continue
        length = ids.shape[-1]
        if length > limit and isinstance(positions, torch.Tensor):
            length = int(positions.max()) + 1
        longest = max(longest, length)
    return longest


def position_limit(config: Any) -> int | None:
    """Return how many positions a model has, in tokens; None where nothing says so."""
    return longest_sequence(config) if isinstance(config, PretrainedConfig) else None


def check_length(longest: int, limit: int) -> None:
    """Refuse a sequence that is longer than the model's positions.

    Raises:
        TrainingInputError: with both numbers.
    """
    if longest > limit:
        raise TrainingInputError(
            f"a sequence of {longest} tokens is longer than the {limit} positions of the model "
            "(max_position_embeddings); cut the samples, or give a model with more positions"
        )


class InputChecks(Trainer):
    """A Trainer that refuses empty data sets and sequences longer than the model, on all ranks alike."""

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of this replica's batches.

        Raises:
            TrainingInputError: there is no sample.
        """
        check_not_empty(self.train_dataset, "train_dataset")
        return super().get_train_dataloader()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return the loader of this replica's batches to evaluate.

        Raises:
            TrainingInputError: there is no sample.
        """
        check_not_empty(self.eval_dataset if eval_dataset is None else eval_dataset, "eval_dataset")
        return super().get_eval_dataloader(eval_dataset)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Return the batches of a step and their number of targets.

        Raises:
            TrainingInputError: on every rank, if a sequence of any replica is longer than the model.
        """
        batches, items = super().get_batch_samples(*args, **kwargs)
        self.check_lengths(batches)
        return batches, items

    def check_lengths(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """Refuse batches with a sequence that the model has no positions for; every rank must call this.

        Raises:
            TrainingInputError: on every rank, if a sequence of any replica is longer than the model.
        """
        limit = position_limit(getattr(self.model, "config", None))
        if limit is None:
            return
        longest = longest_row(batches, limit)
        if self.args.world_size > self.get_tp_size():  # replicas, which have read different batches
            everyone = self.accelerator.gather(torch.tensor([longest], device=self.args.device))
            longest = int(everyone.max())
        check_length(longest, limit)
