"""Which parameter of a split model is which of the Hugging Face model."""

from __future__ import annotations

from torch import nn

from npu_plugins.pipeline.hf.layers import Part


def hf_names(module: nn.Module) -> dict[str, str]:
    """Return the Hugging Face name of each parameter that this rank holds, by its name in the pipeline.

    Tied parameters have one name on both sides, the embedding's. Names are unique on both sides, so that the
    dict can be turned round.

    Args:
        module: what `split_model` returned.
    """
    own = dict(module.named_parameters())
    found = {}
    for path, part in module.named_modules():
        if isinstance(part, Part):
            for name, place in part.places.items():
                for rest, _ in part.get_submodule(name).named_parameters():
                    if (local := f"{path}.{name}.{rest}") in own:
                        found[local] = f"{place}.{rest}"
    return found
