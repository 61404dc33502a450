"""accelerate's `Accelerator` for a job whose replicas are blocks of tp × pp ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import recursively_apply
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from transformers.trainer_utils import seed_worker

from hf_integration.data.sampler import Replica
from hf_integration.deepspeed_stage0 import gradient_scale, scale_gradients
from hf_integration.replica_batches import ByEpoch, StreamBatches, of_replica, stream_for_evaluation
from npu_plugins.comm import ProcessMesh, gradient_norm


class MeshAccelerator(Accelerator):
    """`Accelerator` that deals batches to replicas, and gathers results once from each of them.

    accelerate 1.15 takes every rank for a replica, but for the ranks of a device mesh whose axes are ordered
    otherwise than here. All else it does (device, main process, printing) stays as it is.
    """

    def __init__(self, mesh: ProcessMesh, data_seed: int, **kwargs: Any) -> None:
        """Take the mesh, the seed of shuffling, and the arguments of `Accelerator`."""
        super().__init__(**kwargs)
        self.mesh, self._data_seed = mesh, data_seed
        self.engine: Any = None
        """DeepSpeed's, of a model whose backward pass runs here: with tensor parallelism alone."""
        self.measured_norm: torch.Tensor | None = None
        """Of the last step's gradient, where DeepSpeed reports none."""
        self.before_step: Callable[[], None] | None = None
        """Called when the gradients of a step are reduced, before the engine clips and uses them."""
        self._each_once = self._all_alike = self._nothing = False

    def prepare_data_loader(
        self, data_loader: DataLoader, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> DataLoader:
        """Return a loader that gives all ranks of a replica the same batches, in the order of one process."""
        if getattr(data_loader, "_is_accelerate_prepared", False):
            return data_loader
        self._seed(data_loader)
        placed = self.device_placement if device_placement is None else device_placement
        own, size = Replica.of(self.mesh), data_loader.batch_size or 1
        dealt, stream = Replica(), isinstance(data_loader.dataset, IterableDataset)
        if self._each_once:
            data_loader = of_replica(data_loader, own) if own.size > 1 else data_loader
        elif stream:
            data_loader = stream_for_evaluation(data_loader, own.size)
        else:
            dealt = own
        prepared = prepare_data_loader(
            data_loader,
            self.device,
            num_processes=dealt.size,
            process_index=dealt.rank,
            split_batches=self.split_batches,
            put_on_device=placed,
            rng_types=self.rng_types.copy(),
            dispatch_batches=False,
            even_batches=self.even_batches,
            slice_fn_for_dispatch=slice_fn_for_dispatch,
            use_seedable_sampler=self.use_seedable_sampler,
            data_seed=self._data_seed,
            non_blocking=self.non_blocking,
        )
        if stream and not self._each_once:
            prepared = StreamBatches(prepared, size, own)
        self._dataloaders.append(prepared)
        return prepared

    @contextlib.contextmanager
    def dealing_each_sample_once(self) -> Iterator[None]:
        """Prepare loaders, in here, whose epochs end without repeated samples (see `of_replica`)."""
        self._each_once = True
        try:
            yield
        finally:
            self._each_once = False

    @contextlib.contextmanager
    def taking_all_for_alike(self) -> Iterator[None]:
        """Let `gather`, in here, return this replica's tensors as if all others had the same."""
        self._all_alike = True
        try:
            yield
        finally:
            self._all_alike = False

    @contextlib.contextmanager
    def counting_nothing(self) -> Iterator[None]:
        """Let `backward`, in here, add zero to the gradient: of a batch that stands for none."""
        self._nothing = True
        try:
            yield
        finally:
            self._nothing = False

    def _seed(self, loader: DataLoader) -> None:
        """Shuffle and collate alike on all ranks of a replica, whatever numbers they have drawn before."""
        sampler = loader.sampler
        if getattr(sampler, "generator", self) is None:
            sampler.generator = torch.Generator()
            sampler.generator.manual_seed(self._data_seed)
            if not isinstance(sampler, RandomSampler):  # of which accelerate makes one that knows epochs
                loader.batch_sampler.sampler = ByEpoch(sampler, self._data_seed)
        init = loader.worker_init_fn
        if isinstance(init, partial) and init.func is seed_worker:
            loader.worker_init_fn = partial(seed_worker, **{**init.keywords, "rank": self.mesh.rank("dp")})

    def gather(self, tensor: Any) -> Any:
        """Return nested tensors of all replicas, joined along their first dim, on every rank."""
        return recursively_apply(self._gather_one, tensor, error_on_other_type=True)

    def _gather_one(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.reshape(1) if tensor.ndim == 0 else tensor.contiguous()
        group = self.mesh.group("dp")
        if group is None:
            return tensor
        if self._all_alike:
            return torch.cat([tensor] * self.mesh.size("dp"))
        pieces = [torch.empty_like(tensor) for _ in range(self.mesh.size("dp"))]
        dist.all_gather(pieces, tensor, group=group)
        return torch.cat(pieces)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run the engine's backward pass, and its step at the end of the accumulation."""
        engine = self.engine
        loss = apart(loss * 0.0 if self._nothing else loss)
        scale_gradients(loss, engine)
        engine.set_gradient_accumulation_boundary(is_boundary=self.sync_gradients)
        # The Trainer has scaled the loss for the accumulation already.
        engine.backward(loss, scale_wrt_gas=False, **kwargs)
        if self.sync_gradients:
            if self.before_step is not None:
                self.before_step()
            if not (engine.zero_optimization() or engine.bfloat16_enabled()):
                # DeepSpeed 0.19.8 clips by this norm and forgets it (engine.py:3502), or, in fp16, keeps it
                # with the loss scale in it (unfused_optimizer.py:224).
                norm = gradient_norm(engine.module.parameters(), self.mesh)
                self.measured_norm = norm / gradient_scale(engine)
            engine.step()

    @contextlib.contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        """Do nothing: the engine reduces gradients at the end of the accumulation by itself."""
        yield


def apart(loss: torch.Tensor) -> torch.Tensor:
    """Return the loss as a tensor that is no output of DeepSpeed's engine.

    The engine puts a hook on its outputs that divides by the accumulation steps unless a hook on the loss has
    run before (0.19.8, engine.py:3179). On one and the same tensor its own runs first, and divides although
    it was told not to.
    """
    return loss * 1.0
