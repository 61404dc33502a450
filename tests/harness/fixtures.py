"""How tests ask for ranks: the `rank_pool` and `ranks` fixtures and the `on_ranks` decorator."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.npu import rank_environment, why_no_npu
from tests.harness.outcome import RankFailure
from tests.harness.pool import DEFAULT_TIMEOUT, RankPool, World
from tests.harness.spec import WorldSpec

# What ranks need soon or late, imported once: an optimizer's first step imports torch._dynamo, for seconds.
IMPORTS = ("torch", "torch.distributed", "torch._dynamo", "torch.distributed.fsdp", "pytest")


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    """The session's pool; its nursery starts with the first world."""
    with contextlib.closing(RankPool(rank_environment(), IMPORTS)) as pool:
        yield pool


@pytest.fixture
def ranks(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[World]:
    """A fresh world for this test.

    Its shape comes from `@pytest.mark.ranks(size, backend="hccl", preload=(), **WorldSpec fields)`; an
    indirect parameter, `@pytest.mark.parametrize("ranks", [2, 4], indirect=True)`, overrides the size.
    """
    marker = request.node.get_closest_marker("ranks")
    args, options = (marker.args, dict(marker.kwargs)) if marker else ((), {})
    if hasattr(request, "param"):
        args = (request.param,)
    if len(args) != 1:
        raise pytest.UsageError("The ranks fixture wants @pytest.mark.ranks(size) or an indirect parameter.")
    yield from _open(rank_pool, args[0], options)


def _open(pool: RankPool, size: int, options: dict[str, Any]) -> Iterator[World]:
    preload = options.pop("preload", ())
    spec = WorldSpec(size=size, **options)
    reason = why_no_npu() if spec.needs_npu else None
    if reason:
        pytest.skip(reason)
    if preload:
        pool.preload(*preload)
    world = pool.open(spec)
    try:
        yield world
    finally:
        world.stop()


def on_ranks(
    size: int, *, timeout: float = DEFAULT_TIMEOUT, **options: Any
) -> Callable[[Callable], Callable]:
    """Decorator: run the body of a test on every rank of a fresh world.

    Parameters of the test (`parametrize`, picklable fixtures) are sent to the ranks; `options` are those of
    the `ranks` marker. A rank may call pytest.skip; the test is skipped if no rank failed and one skipped.
    """

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def test(ranks: World, **kwargs: Any) -> None:
            try:
                ranks.run(function, timeout=timeout, **kwargs)
            except RankFailure as failure:
                bad = [outcome for outcome in failure.outcomes if not outcome.ok]
                if all(outcome.kind == "skipped" for outcome in bad):
                    pytest.skip(bad[0].text)
                raise

        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(function).parameters.values()
        ]
        first = inspect.Parameter("ranks", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([first, *own])  # type: ignore[attr-defined]
        return pytest.mark.ranks(size, **options)(test)

    return decorate
