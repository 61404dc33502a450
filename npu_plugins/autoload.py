"""Lets unmodified programs find the NPU: hooks the imports of torch, torch_npu and DeepSpeed's accelerator choice.

Two ways lead here. A `.pth` file in site-packages runs install() at every interpreter start, so this module must stay
tiny: it imports nothing but what the interpreter has already loaded. An entry point of the group `torch.backends` calls
torch_backend() from `import torch`. Each hook does its work only when the module it waits for is really imported.

Why hooks: DeepSpeed 0.19 has a closed list of accelerators, and `set_accelerator` after `import deepspeed` comes too
late, as op builders and timers are bound during that import. torch_npu 2.13 links to CANN, so simulated libraries must
be in the process before it.
"""

import os
import sys

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # torch's switch: "0" keeps it from importing backends


def install() -> None:
    """Put the import finder in place; a second call does nothing."""
    if not any(getattr(finder, "is_npu_plugins_finder", False) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]  # a finder by duck typing, as PEP 302 allows


def torch_backend() -> None:
    """Entry point of `torch.backends`: serves an interpreter that skipped the .pth file (python -S, zipapps)."""
    install()


class _Finder:
    """Finds the hooked modules where the other finders do, and wraps their loaders."""

    is_npu_plugins_finder = True

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "Any" = None
    ) -> "ModuleSpec | None":
        hook = _HOOKS.get(name)
        if hook is None:
            return None
        for finder in sys.meta_path:
            spec = (
                finder.find_spec(name, path, target)
                if finder is not self and hasattr(finder, "find_spec")
                else None
            )
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _HookedLoader(spec.loader, hook)  # type: ignore[assignment]  # duck typing again
                return spec
        return None


class _HookedLoader:
    """Runs a module's own loader between the two halves of a hook."""

    def __init__(self, loader: "Any", hook: "Callable[[ModuleType], Iterator[None]]") -> None:
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        return self._loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        if module.__spec__ is not None:  # from here on, nobody needs to know that we were in between
            module.__spec__.loader = module.__loader__ = self._loader
        steps = self._hook(module)
        next(steps)
        try:
            self._loader.exec_module(module)
        except BaseException:
            steps.close()  # type: ignore[attr-defined]  # a generator
            raise
        next(steps, None)


def _around_torch(module: "ModuleType") -> "Iterator[None]":
    """Make `import torch` load the NPU when it can, fail plainly when the simulator cannot start, else leave it out.

    torch 2.5 and newer import torch_npu on their own, and turn its failure into their own. With the simulator asked for,
    all that can fail is done before torch runs, where the error passes unchanged. With neither CANN nor the simulator,
    torch's switch is off for the time of its import.
    """
    from npu_plugins.availability import installed, why_no_cann
    from npu_plugins.simulator.settings import simulator_requested

    before = os.environ.get(_AUTOLOAD)
    if before not in (None, "1"):
        yield
        return
    if simulator_requested():
        _load_simulator()
        yield
        return
    without_npu = installed("torch_npu") and why_no_cann() is not None
    if without_npu:
        os.environ[_AUTOLOAD] = "0"
    try:
        yield
    finally:
        if without_npu:
            os.environ.pop(_AUTOLOAD)
            if before is not None:
                os.environ[_AUTOLOAD] = before


def _around_torch_npu(module: "ModuleType") -> "Iterator[None]":
    """Load the simulated CANN before torch_npu and its kernels after, or say what a real one lacks."""
    from npu_plugins.availability import check_pair, refuse_without_cann
    from npu_plugins.simulator.settings import simulator_requested

    if simulator_requested():
        _load_simulator()
        yield
        from npu_plugins.simulator.loader import load_kernels

        load_kernels()
    else:
        refuse_without_cann()
        check_pair()
        yield


def _around_deepspeed_accelerator(module: "ModuleType") -> "Iterator[None]":
    """Give DeepSpeed our accelerator right after its module that chooses one has run."""
    yield
    from npu_plugins.availability import npu_for_deepspeed

    if npu_for_deepspeed():
        from npu_plugins.accelerator import NpuAccelerator

        setattr(module, "ds_accelerator", NpuAccelerator())  # noqa: B010  # mypy knows no such attribute


def _load_simulator() -> None:
    from npu_plugins.availability import check_pair
    from npu_plugins.errors import show_as_one_sentence
    from npu_plugins.simulator.loader import load_cann

    show_as_one_sentence()
    load_cann()
    check_pair()


_HOOKS = {
    "torch": _around_torch,
    "torch_npu": _around_torch_npu,
    "deepspeed.accelerator.real_accelerator": _around_deepspeed_accelerator,
}
