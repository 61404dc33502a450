"""All ranks of a group come to one name, whatever a store still holds of ranks that are no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from npu_plugins.diagnostics.hang.greeting import Greeting


def greetings(path: Path, ranks: range | list[int]) -> dict[int, Greeting]:
    return {rank: Greeting(dist.FileStore(str(path), -1), rank, 3) for rank in ranks}


def names(group: dict[int, Greeting], looks: int = 3) -> set[str | None]:
    for _ in range(looks):
        found = {greeting.look() for greeting in group.values()}
    return found


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_all_come_to_one_name(tmp_path: Path, order: list[int]) -> None:
    (name,) = names(greetings(tmp_path / "store", order))
    assert name


def test_who_comes_late_gets_it_too(tmp_path: Path) -> None:
    early = greetings(tmp_path / "store", [0, 1])
    (name,) = names(early)
    late = greetings(tmp_path / "store", [2])
    assert names(early | late) == {name}


def test_nobody_has_a_name_without_rank_0(tmp_path: Path) -> None:
    assert names(greetings(tmp_path / "store", [1, 2])) == {None}


def test_ranks_that_are_started_anew_get_another_name(tmp_path: Path) -> None:
    """Of the first start one rank never asked, so that no count of starts is alike on all."""
    (first,) = names(greetings(tmp_path / "store", [0, 1]))
    (second,) = names(greetings(tmp_path / "store", [2, 0, 1]))
    assert first and second and first != second


def test_a_group_that_ends_early_leaves_the_others_without_a_name(tmp_path: Path) -> None:
    group = greetings(tmp_path / "store", [0, 1, 2])
    group[1].close()
    assert group[1].look() is None
    assert len(names({rank: group[rank] for rank in (0, 2)})) == 1
