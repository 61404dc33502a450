"""Which ranks of a group exchange data at the same time, so that all links between them are measured."""

from __future__ import annotations

ALL_PAIRS = 16
"""Up to as many ranks every pair is measured; of more, those whose places are a power of two apart."""


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs of places in a group, in which no place comes twice.

    Up to `ALL_PAIRS` places every pair comes once, by the circle method of round-robin tournaments (n - 1
    rounds for an even n). Beyond that, the pairs (i, i + 1), (i, i + 2), (i, i + 4), … around the circle.

    Args:
        ranks: of the group.
    """
    if ranks <= ALL_PAIRS:
        return _tournament(ranks)
    found = []
    distance = 1
    while distance <= ranks // 2:
        pairs = {tuple(sorted((place, (place + distance) % ranks))) for place in range(ranks)}
        found += _apart([(pair[0], pair[1]) for pair in sorted(pairs)])
        distance *= 2
    return found


def _tournament(ranks: int) -> list[list[tuple[int, int]]]:
    seats = list(range(ranks + ranks % 2))  # of an odd number one sits out
    half, found = len(seats) // 2, []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < ranks])
        seats[1:] = [seats[-1], *seats[1:-1]]
    return found


def _apart(pairs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Spread pairs over as few rounds as a greedy choice needs."""
    found: list[list[tuple[int, int]]] = []
    for pair in pairs:
        for group in found:
            if not any(set(pair) & set(other) for other in group):
                group.append(pair)
                break
        else:
            found.append([pair])
    return found
