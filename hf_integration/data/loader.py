"""The training data loader of one replica, with the settings of TrainingArguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any

from torch.utils.data import Dataset
from transformers import TrainingArguments
from transformers.trainer_utils import seed_worker

from hf_integration.data.sampler import Replica, ReplicaBatchSampler, ReplicaLoader
from hf_integration.errors import TrainingInputError

# Settings of accelerate's own division of batches, which is not used here, and what leaves it alone.
UNUSED = MappingProxyType(
    {"split_batches": False, "dispatch_batches": None, "even_batches": True, "use_seedable_sampler": True}
)


def check_sampling(args: TrainingArguments) -> None:
    """Refuse settings of the data loader that `replica_loader` would pass over.

    Raises:
        TrainingInputError: with the setting and its value.
    """
    if args.train_sampling_strategy not in ("random", "sequential"):
        raise TrainingInputError(
            f"--train_sampling_strategy {args.train_sampling_strategy} is not offered here; choose random or "
            "sequential, and --packing best_fit against padding"
        )
    for name, default in UNUSED.items():
        value = getattr(args.accelerator_config, name, default)
        if value != default:
            raise TrainingInputError(
                f"accelerator_config's {name} is {value}, but batches are not divided by accelerate here; "
                "leave it out"
            )


def replica_loader(
    args: TrainingArguments, samples: Dataset, collate: Callable[[list[Any]], Any], replica: Replica
) -> ReplicaLoader:
    """Return the loader of the batches of ``replica``; all ranks of the replica get the same ones.

    Args:
        args: batch size, seed, order, workers.
        samples: to train on, with a length.
        collate: makes a batch of them.
        replica: see `Replica.of`.

    Raises:
        TrainingInputError: a setting is not offered, or there is no whole batch.
    """
    check_sampling(args)
    sampler = ReplicaBatchSampler(
        len(samples),
        args.train_batch_size,
        replica,
        seed=args.seed if args.data_seed is None else args.data_seed,
        shuffle=args.train_sampling_strategy == "random",
        drop_last=args.dataloader_drop_last,
    )
    return ReplicaLoader(
        samples,
        sampler,
        collate_fn=collate,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        multiprocessing_context=args.dataloader_multiprocessing_context,
        prefetch_factor=args.dataloader_prefetch_factor,
        in_order=args.dataloader_in_order,
        worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=replica.rank),
    )
