"""How a model's layers lie on the stages of a pipeline."""

from __future__ import annotations


def layers_of_stages(layers: int, stages: int) -> list[range]:
    """Return the layers of each stage, as even as whole layers allow, the extra ones in front.

    The last stage also computes the logits, so that it must not have an extra layer.
    """
    least, extra = divmod(layers, stages)
    starts = [stage * least + min(stage, extra) for stage in range(stages + 1)]
    return [range(start, end) for start, end in zip(starts, starts[1:], strict=False)]
