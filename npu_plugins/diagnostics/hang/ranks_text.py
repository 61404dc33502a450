"""Ranks in words: `0-3, 5`."""

from __future__ import annotations

from collections.abc import Iterable


def ranks_text(ranks: Iterable[int], most: int = 12) -> str:
    """Return ranks in their order, neighbours drawn together; after `most` pieces only how many more."""
    pieces: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if pieces and rank == pieces[-1][1] + 1:
            pieces[-1][1] = rank
        else:
            pieces.append([rank, rank])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in pieces[:most]]
    left = sum(last - first + 1 for first, last in pieces[most:])
    return ", ".join(told) + (f" and {left} more" if left else "")


def the_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 3` or `ranks 0-3, 5`."""
    ranks = set(ranks)
    return f"rank {next(iter(ranks))}" if len(ranks) == 1 else f"ranks {ranks_text(ranks)}"


def capital(sentence: str) -> str:
    """Return a sentence with its first letter a capital; the rest as it is."""
    return sentence[:1].upper() + sentence[1:]
