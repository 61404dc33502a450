"""Weight gradients that run later than the backward pass that made them possible.

Zero-bubble pipelines (arXiv 2401.10241 §2) split a backward pass in I, the input gradient that the stage
before waits for, and W, the weight gradients, which fill what would be idle time. The split here is a store
of closures: the backward pass of a layer puts its W into the store, under the stage and micro-batch at work,
and the schedule runs it when it wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from npu_plugins.tensor_parallel.errors import TensorParallelError

Key = tuple[int, int]


class WeightGradients:
    """The W of layers that were given this store, by (stage, micro-batch).

    ```
    store = WeightGradients()
    layer = ColumnParallelLinear(h, 4 * h, group=group, weight_gradients=store)
    with store.at(stage, micro_batch):
        loss.backward()             # I only
    store.run(stage, micro_batch)   # W
    store.check_done()              # before the optimizer's step
    ```
    Outside `at` the layers do their whole backward pass at once, as without a store. Hooks on a parameter
    fire when W delivers its gradient. Autograd calls them in I as well, without a gradient: one on the
    gradient gets None, one after its accumulation finds `.grad` as it was.
    """

    def __init__(self) -> None:
        self._works: dict[Key, list[Callable[[], None]]] = {}
        self._key: Key | None = None
        self._in_place = False
        self._optimizer: Any = None

    @property
    def collecting(self) -> bool:
        """Whether a backward pass now leaves its W to the store."""
        return self._key is not None

    @property
    def pending(self) -> list[Key]:
        """(stage, micro-batch) whose W has not run yet, oldest first."""
        return list(self._works)

    @contextmanager
    def at(self, stage: int, micro_batch: int) -> Iterator[None]:
        """Backward passes within leave their W under this stage and micro-batch."""
        outer, self._key = self._key, (stage, micro_batch)
        self._works.setdefault((stage, micro_batch), [])
        try:
            yield
        finally:
            self._key = outer

    @property
    def in_place(self) -> bool:
        """Whether a backward pass now adds weight gradients to `.grad` by itself."""
        return self._in_place

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Backward passes within do their whole work, and add each product to `.grad` without a temporary.

        That is what W does, done at once: it saves autograd's sum, which reads and writes every weight's
        gradient once more. Parameters with hooks get their gradients from autograd as ever.
        """
        outer, self._in_place = self._in_place, True
        try:
            yield
        finally:
            self._in_place = outer

    def put(self, work: Callable[[], None]) -> None:
        """Keep one layer's W; called by the layers' backward pass.

        Raises:
            TensorParallelError: no stage and micro-batch are at work.
        """
        if self._key is None:
            raise TensorParallelError(
                "WeightGradients: put was called outside of `with store.at(stage, micro_batch)`; run the "
                "backward pass inside it"
            )
        self._works[self._key].append(work)

    @torch.no_grad()
    def run(self, stage: int, micro_batch: int) -> None:
        """Run the W of one stage and micro-batch, in the order its backward pass met the layers.

        Raises:
            TensorParallelError: there is none: its backward pass has not run, or its W has run already.
        """
        works = self._works.pop((stage, micro_batch), None)
        if works is None:
            raise TensorParallelError(
                f"WeightGradients: nothing is pending for stage {stage}, micro-batch {micro_batch} (pending: "
                f"{self.pending or 'none'}); run its backward pass within `with store.at({stage}, "
                f"{micro_batch})` first, and its W once only"
            )
        if self._optimizer is not None:
            # What I left there is in the fp32 buffers already; a second update would count it twice.
            self._optimizer.clear_lp_grads()
        while works:
            works.pop(0)()  # and forget it, so that its activations are freed at once
        if self._optimizer is not None:
            self._optimizer.update_hp_grads(clear_lp_grads=True)

    def check_done(self) -> None:
        """Refuse to go on to the optimizer's step while some W is missing from the gradients.

        Raises:
            TensorParallelError: the W of some stage and micro-batch has not run.
        """
        if self._works:
            raise TensorParallelError(
                f"WeightGradients: (stage, micro-batch) {self.pending} have not run their W, so the "
                "gradients are not whole; call run for each of them before the optimizer's step"
            )

    def serve(self, optimizer: Any) -> None:
        """Hand the gradients over as DeepSpeed's `optimizer` needs them.

        DeepSpeed's BF16_Optimizer copies gradients into fp32 buffers when a backward pass ends, so W has to
        tell it again. ZeRO's hooks on parameters reduce gradients while the backward pass goes on; they would
        find those of W missing, and an optimizer that relies on them is refused. ZeRO-1 without overlap_comm
        reads the gradients when all micro-batches are done, and needs nothing.

        Raises:
            TensorParallelError: the optimizer reduces gradients before W has run.
        """
        stage_3 = hasattr(optimizer, "parameter_offload")  # DeepSpeed 0.19.8 marks its optimizers no better
        if stage_3 or getattr(optimizer, "partition_gradients", False):
            raise TensorParallelError(
                "WeightGradients: ZeRO-2 and ZeRO-3 reduce and free each gradient as soon as it is computed, "
                "before a deferred weight gradient has run; use ZeRO stage 0 or 1"
            )
        if getattr(optimizer, "overlap_comm", False):
            raise TensorParallelError(
                "WeightGradients: ZeRO-1 with overlap_comm reduces gradients through hooks that do not fire "
                'for a deferred weight gradient; set "overlap_comm": false'
            )
        accumulates = hasattr(optimizer, "update_hp_grads")
        if accumulates and not getattr(optimizer, "immediate_grad_update", False):
            self._optimizer = optimizer


def deliver(parameter: torch.Tensor, grad: torch.Tensor) -> None:
    """Add a gradient to `parameter.grad`, where autograd itself would have put it.

    A parameter with hooks, and a tensor computed from a parameter (its cast under autocast), get it from
    autograd, so that the hooks fire and the gradient goes where it belongs.
    """
    if not is_plain(parameter):
        with torch.enable_grad():
            target = parameter if parameter.grad_fn is not None else parameter.view_as(parameter)
        torch.autograd.backward([target], [grad])
    elif parameter.grad is None:
        parameter.grad = grad
    else:
        parameter.grad.add_(grad)


def deliver_product(parameter: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add the gradient `left` [out, tokens] × `right` [tokens, in] to `parameter.grad`.

    Like `deliver`, but a plain parameter that has a gradient already takes the product without a temporary.
    """
    if is_plain(parameter) and parameter.grad is not None:
        parameter.grad.addmm_(left, right)
    else:
        deliver(parameter, left.mm(right))


def is_plain(parameter: torch.Tensor) -> bool:
    """Whether nobody but `.grad` waits for a parameter's gradient."""
    return parameter.grad_fn is None and not _has_hooks(parameter)


def _has_hooks(parameter: torch.Tensor) -> bool:
    # torch has no public question for this; both are dicts, or None where no hook was ever registered.
    return bool(parameter._backward_hooks) or bool(getattr(parameter, "_post_accumulate_grad_hooks", None))
