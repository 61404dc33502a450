"""A model of a given number of parameters, for estimates before there is a configuration.

The rule: a GPT as Megatron-LM builds it (Narayanan et al. 2021, arXiv 2104.04473 §5.1: MLP of 4 × hidden,
learned positions, 51,200 tokens, tied output layer), heads of 128. Its hidden size over its number of layers
is interpolated, in the logarithm of the size, between the models of that paper's table 1. Whole layers and
heads rarely meet the size, so the MLP's width, a multiple of 64, takes up the difference, and a last vector
the rest: the total is exact.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from math import log

from ds_configs.errors import DsConfigError
from ds_configs.models.shape import ModelShape

SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
HEAD_DIM = 128
MLP_MULTIPLE = 64  # so that tensor parallelism can divide it
VOCABULARY = 51200
POSITIONS = 2048
# Narayanan et al. 2021, table 1: parameters in billions, layers, hidden size.
TABLE_1 = (
    (1.7, 24, 2304),
    (3.6, 30, 3072),
    (7.5, 36, 4096),
    (18.4, 40, 6144),
    (39.1, 48, 8192),
    (76.1, 60, 10240),
    (145.6, 80, 12288),
    (310.1, 96, 16384),
    (529.6, 105, 20480),
    (1008.0, 128, 25600),
)


def parse_size(text: str) -> int:
    """Return the number that "7.5B", "350M" or "7500000000" means.

    Raises:
        DsConfigError: it means none, or no whole number of parameters.
    """
    match = re.fullmatch(r"\s*(\d+)(?:\.(\d+))?\s*([KMBTkmbt]?)\s*", text)
    if not match:
        raise DsConfigError(f"{text!r} is no number of parameters; write 350M, 7.5B or 7500000000")
    whole, fraction, suffix = match.group(1), match.group(2) or "", match.group(3).upper()
    scaled, rest = divmod(int(whole + fraction) * SUFFIXES[suffix], 10 ** len(fraction))
    if rest or not scaled:
        raise DsConfigError(f"{text!r} is no whole number of parameters; write 350M, 7.5B or 7500000000")
    return scaled


def shape_of_size(text: str, positions: int = POSITIONS) -> ModelShape:
    """Return a GPT of exactly the number of parameters that ``text`` means, by this module's rule.

    Its table of learned positions has ``positions`` rows.

    Raises:
        DsConfigError: ``text`` is no number, or too small for one layer.
    """
    wanted = parse_size(text)
    make = partial(_gpt, text.strip(), positions)
    shapes = [shape for heads in _head_counts(wanted) if (shape := _fill(make, wanted, heads))]
    if not shapes:
        least = make(1, HEAD_DIM, MLP_MULTIPLE).parameters()
        raise DsConfigError(f"{text} is too few parameters for one layer; the least is {least:,}")
    return min(shapes, key=_distance)


def aspect_ratio(parameters: int) -> float:
    """Return hidden size over number of layers for a model of ``parameters``."""
    points = [(log(size * 1e9), hidden / layers) for size, layers, hidden in TABLE_1]
    where = log(parameters)
    right = bisect_left([x for x, _ in points], where)
    if right in (0, len(points)):
        return points[min(right, len(points) - 1)][1]
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 + (y1 - y0) * (where - x0) / (x1 - x0)


def _head_counts(parameters: int) -> range:
    """Return the candidates: around the root of 12 · layers · hidden² = parameters.

    Multiples of 8 from 24 heads on, as in all of table 1, so that tensor parallelism can divide them; even
    ones before.
    """
    middle = int((parameters * aspect_ratio(parameters) / 12) ** (1 / 3) / HEAD_DIM)
    step = 8 if middle >= 24 else 2 if middle >= 4 else 1
    return range(max(step, middle // 2 // step * step), middle + step + 1, step)


def _distance(shape: ModelShape) -> float:
    """How far the MLP is from 4 × hidden, and the layers from the aspect ratio, in powers of e."""
    ratio = aspect_ratio(shape.parameters())
    return abs(log(shape.ffn / shape.hidden / 4)) + abs(log(shape.hidden / shape.layers / ratio))


def _fill(make: Callable[..., ModelShape], wanted: int, heads: int) -> ModelShape | None:
    hidden = heads * HEAD_DIM
    layers = max(1, round(hidden / aspect_ratio(wanted)))
    least = make(layers, hidden, MLP_MULTIPLE).parameters()
    if wanted < least:
        return None
    steps, remainder = divmod(wanted - least, MLP_MULTIPLE * layers * (2 * hidden + 1))
    return make(layers, hidden, MLP_MULTIPLE * (1 + steps), remainder)


def _gpt(name: str, positions: int, layers: int, hidden: int, ffn: int, remainder: int = 0) -> ModelShape:
    heads = hidden // HEAD_DIM
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=heads,
        head_dim=HEAD_DIM,
        vocab=VOCABULARY,
        max_positions=positions,
        gated_mlp=False,
        tied_embeddings=True,
        learned_positions=positions,
        norm="layernorm",
        activation="gelu",
        dropout=0.1,
        attention_dropout=0.1,
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        remainder=remainder,
    )
