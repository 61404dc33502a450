"""Which engine runs a combination of degrees, and whether it can be had today."""

from __future__ import annotations

from dataclasses import dataclass

from ds_configs.models import ModelShape
from ds_configs.parallel import ParallelConfig


@dataclass(frozen=True)
class Engine:
    """What runs a proposal."""

    name: str
    today: bool
    """False: it is still to come."""
    stages: tuple[int, ...]
    """ZeRO stages it works with."""
    schedules: tuple[str, ...] = ("1f1b",)
    sequence_parallel: bool = False
    vocab_parallel: bool = True
    offload: bool = False
    own: bool = False
    """Whether it is npu_plugins', and not DeepSpeed's."""


# DeepSpeed 0.19.8: AutoTP works with every stage (engine.py:947), PipelineModule with 0 and 1
# (pipe/engine.py:76).
ZERO = Engine("DeepSpeed ZeRO", True, (0, 1, 2, 3), offload=True)
AUTOTP = Engine("DeepSpeed AutoTP", True, (0, 1, 2, 3), vocab_parallel=False)
PIPELINE = Engine("DeepSpeed PipelineModule", True, (0, 1))
OWN_PIPELINE = Engine("npu_plugins pipeline", True, (0, 1), ("zb-h1", "zb-v", "interleaved"), own=True)
OWN_TP = Engine("npu_plugins tensor parallelism", True, (0, 1), sequence_parallel=True, own=True)
OWN_TP_PP = Engine(
    "npu_plugins tensor and pipeline parallelism",
    True,
    (0, 1),
    ("1f1b", "zb-h1", "zb-v", "interleaved"),
    sequence_parallel=True,
    own=True,
)
OWN_EP = Engine("npu_plugins expert parallelism (to come)", False, (0, 1, 2), own=True)


def engines_for(shape: ModelShape, parallel: ParallelConfig) -> list[Engine]:
    """Return the engines that can divide ``shape`` by ``parallel``; none where nothing can.

    DeepSpeed's AutoTP divides whole key-value heads (engine.py:1046) of a dense model; PipelineModule and
    AutoTP exclude each other.
    """
    tp, pp = parallel.tp, parallel.pp
    if shape.heads % tp or shape.ffn % tp or pp > shape.layers:
        return []
    if parallel.ep > 1:
        return [OWN_EP] if tp == pp == 1 else []
    if tp == pp == 1:
        return [ZERO]
    if tp == 1:
        return [PIPELINE, OWN_PIPELINE]
    if pp > 1:
        return [OWN_TP_PP] if shape.moe is None else []
    automatic = shape.moe is None and shape.kv_heads % tp == 0
    return ([AUTOTP] if automatic else []) + ([OWN_TP] if shape.moe is None else [])
