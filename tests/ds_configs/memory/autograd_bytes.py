"""Bytes that are live in a training step of transformers' models on the CPU: a question to the oracle.

Every tensor that an operator returns is followed until its storage dies.
"""

from __future__ import annotations

from typing import Any

MICRO_BATCH, SEQUENCE = 2, 128


def live(cases: list[list[Any]]) -> list[list[Any]]:
    """Answer each case [family, dtype, attention, gradient checkpointing, fields of the configuration] with
    [bytes live after the forward pass, at the peak, config.json]."""
    return [_live(*case) for case in cases]


def _live(family: str, dtype: str, attention: str, checkpointing: bool, fields: dict[str, Any]) -> list[Any]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **fields)
    config._attn_implementation = attention
    model = AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(0, config.vocab_size, (MICRO_BATCH, SEQUENCE))
    with _tracker([*model.parameters(), *model.buffers(), ids]) as tracker:
        output = model(input_ids=ids, labels=ids, use_cache=False)
        tracker.sweep()
        forward = tracker.live
        output.loss.backward()
    return [forward, tracker.peak, config.to_dict()]


def _tracker(known: list[Any]) -> Any:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Tracker(TorchDispatchMode):
        """Follows the storages made under it."""

        def __init__(self) -> None:
            super().__init__()
            self.known = {tensor.untyped_storage()._cdata for tensor in known}
            self.sizes: dict[int, tuple[StorageWeakRef, int]] = {}
            self.live = self.peak = 0

        def sweep(self) -> None:
            for key in [key for key, (storage, _) in self.sizes.items() if storage.expired()]:
                self.live -= self.sizes.pop(key)[1]

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            self.sweep()
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in self.known:
                    storage = leaf.untyped_storage()
                    if storage._cdata not in self.sizes:
                        self.sizes[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                        self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            return result

    return Tracker()
