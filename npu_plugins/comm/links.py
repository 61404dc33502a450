"""Latency and bandwidth of links, from the times of messages of several sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds_configs.measured_links import LinkSpeed
from npu_plugins.comm.errors import CommError


def fit(measured: Sequence[tuple[int, float]]) -> LinkSpeed:
    """Return the latency and bandwidth that tell the measured times best.

    Seconds = latency + bytes / bandwidth is fitted by least squares to the relative errors, so that a message
    of 8 bytes counts as much as one of 64 MiB; neither number becomes negative.

    Args:
        measured: (bytes, seconds) of messages of at least two sizes.

    Raises:
        CommError: there are fewer sizes, a time is not above 0, or large messages are not slower.
    """
    sizes = np.array([size for size, _ in measured], dtype=np.float64)
    times = np.array([seconds for _, seconds in measured], dtype=np.float64)
    if len(set(sizes)) < 2:
        raise CommError(
            f"A link's latency and bandwidth need messages of two sizes or more, not of {sizes.tolist()} "
            "bytes; measure a range of sizes"
        )
    if not (times > 0).all():
        raise CommError(f"The times {times.tolist()} are not all above 0 seconds; measure more iterations")
    latency, per_byte = np.linalg.lstsq(
        np.stack([1 / times, sizes / times], 1), np.ones_like(times), rcond=None
    )[0]
    if latency < 0:  # the best line through the origin
        latency, per_byte = 0.0, float((sizes / times).sum() / ((sizes / times) ** 2).sum())
    if per_byte <= 0:
        raise CommError(
            f"Messages of {sizes.max():g} bytes took {times[sizes.argmax()]:g} s and those of "
            f"{sizes.min():g} bytes {times[sizes.argmin()]:g} s, which tells no bandwidth; "
            "measure larger ones"
        )
    told = latency + sizes * per_byte
    return LinkSpeed(
        latency=float(latency),
        bandwidth=float(1 / per_byte),
        largest=int(sizes.max()),
        error=float(np.abs(told / times - 1).max()),
    )
