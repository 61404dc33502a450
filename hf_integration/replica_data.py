"""What a replica reads and counts: the part of `NpuTrainer` by which n replicas train as one process does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer

from hf_integration.data.sequences import NO_LOSS
from hf_integration.parallel_settings import ParallelSettings
from hf_integration.replica_batches import LABELS, StandIn, ends_with_stand_in


class ReplicaData(Trainer):
    """A Trainer whose replicas are blocks of tp × pp ranks, each with one batch.

    Where losses are averaged over the tokens of all replicas (the default), the end of an epoch has no sample
    twice, and the steps are those of one process. With ``average_tokens_across_devices=False``, or a model
    that takes no ``num_items_in_batch``, each replica averages by itself and needs a sample: then one that
    has none left repeats one of the last.

    An evaluation loss is the mean over rows of the mean over a batch's tokens, as one process reports it with
    the same ``per_device_eval_batch_size``.
    """

    parallel: ParallelSettings
    whole_model_parameters: int | None = None
    """Numbers in the model but for its embeddings, counted before it was divided."""
    _evaluates = False

    @property
    def repeats_no_sample(self) -> bool:
        """Whether an epoch ends without repeated samples."""
        counts = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        return self.parallel.divides and self.args.average_tokens_across_devices and counts

    def get_tp_size(self) -> int:
        """Return how many ranks read the same batch, by which the Trainer divides its counts of ranks."""
        return self.parallel.tp * self.parallel.pp if self.parallel.divides else super().get_tp_size()

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of this replica's batches."""
        if not self.parallel.divides:
            return super().get_train_dataloader()
        with self.accelerator.dealing_each_sample_once():
            return super().get_train_dataloader()

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the batches of a step and their number of targets; an epoch may end with a `StandIn`."""
        if self.parallel.divides:
            last = ends_with_stand_in(self.callback_handler.train_dataloader)
            epoch_iterator = (self._marked(batch, last) for batch in epoch_iterator)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _marked(self, batch: Any, at_the_end: bool) -> Any:
        """Return a batch as a `StandIn` if it stands for none, and may."""
        stands_in = isinstance(batch, StandIn) or (
            at_the_end and self.accelerator.gradient_state.end_of_dataloader
        )
        if not stands_in:
            return batch
        return StandIn(batch) if self.repeats_no_sample else dict(batch)

    # Counts

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Any:
        if not self.parallel.divides:
            return super()._get_num_items_in_batch(batch_samples, device)
        batches = [each.without_labels() if isinstance(each, StandIn) else each for each in batch_samples]
        alone = self.accelerator.taking_all_for_alike() if self._evaluates else contextlib.nullcontext()
        with alone:
            items = super()._get_num_items_in_batch(batches, device)
        # The parent divides by the ranks of a block, but `gather` has asked each replica once.
        return items if items is None else (items * self.get_tp_size()).round()

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return this rank's share of the operations on a batch; the Trainer adds up all ranks'."""
        if not self.parallel.divides or self.whole_model_parameters is None:
            return super().floating_point_ops(inputs)
        tokens = inputs.get(self.model.main_input_name)
        if isinstance(inputs, StandIn) or tokens is None:
            return 0
        return 6 * tokens.numel() * self.whole_model_parameters // self.get_tp_size()

    def _track_num_input_tokens(self, inputs: Any) -> None:
        super()._track_num_input_tokens(inputs.without_rows() if isinstance(inputs, StandIn) else inputs)

    # Evaluation

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, each replica counting its own targets."""
        self._evaluates = True
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self._evaluates = False

    def without_repeated_rows(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an evaluation batch without the targets of rows that only make up an equal number.

        accelerate drops what is gathered of them; the mean of the batch would still have them in it.
        """
        state = self.accelerator.gradient_state
        if not self.parallel.divides or not state.end_of_dataloader or state.remainder <= 0:
            return inputs
        size = self.args.eval_batch_size
        there = state.remainder - self.accelerator.mesh.rank("dp") * size
        if not 0 < there < size:
            return inputs
        cut = {}
        for key in LABELS:
            if isinstance(inputs.get(key), torch.Tensor) and len(inputs[key]) == size:
                cut[key] = inputs[key].clone()
                cut[key][there:] = NO_LOSS
        return {**inputs, **cut}
