"""Lets unmodified programs find the NPU by hooking a few imports (see import_hooks.py).

Two ways lead here. A `.pth` file in site-packages runs install() at every interpreter start, so this module
must stay tiny: it imports nothing the interpreter has not loaded already. An entry point of the group
`torch.backends` calls torch_backend() from `import torch`. A hook does its work only when the module it waits
for is really imported.
"""

import sys

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HOOKS = {  # module to wait for -> generator function of import_hooks.py
    "torch": "around_torch",
    "torch_npu": "around_torch_npu",
    "deepspeed": "around_deepspeed",
    "deepspeed.comm.comm": "around_deepspeed_comm",
    "deepspeed.accelerator.real_accelerator": "around_deepspeed_accelerator",
    "deepspeed.env_report": "around_deepspeed_report",
}


def install() -> None:
    """Put the import finder in place; a second call does nothing."""
    if not any(getattr(finder, "is_npu_plugins_finder", False) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def torch_backend() -> None:
    """Entry point of `torch.backends`: serves an interpreter that did not read the .pth file."""
    install()


def platform() -> str:
    """Return the label under which this process's NPU speeds are reported: `npu` or `simulated_npu`."""
    from npu_plugins.simulator.settings import simulator_requested

    return "simulated_npu" if simulator_requested() else "npu"


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
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _HookedLoader(spec.loader, hook)  # type: ignore[assignment]  # duck typing
                return spec
        return None


class _HookedLoader:
    """Runs a module's own loader between the two halves of a hook."""

    def __init__(self, loader: "Any", hook: str) -> None:
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        return self._loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        if module.__spec__ is not None:  # from here on, nobody needs to know that we were in between
            module.__spec__.loader = module.__loader__ = self._loader
        from npu_plugins import import_hooks

        steps = getattr(import_hooks, self._hook)(module)
        next(steps)
        try:
            self._loader.exec_module(module)
        except BaseException:
            steps.close()
            raise
        next(steps, None)
