"""What ranks measure is what their tensors take, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from npu_plugins.diagnostics.memory import RankMemory, measure_memory, memory_of_all, memory_report
from npu_plugins.diagnostics.memory.measure import what_it_holds
from tests.harness.fixtures import on_ranks

SIZE, EXTRA = 1024, 40 << 20


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["model.embed_tokens.weight", "model.layers.0.a", "model.layers.1.a"], "embedding, layers 0-1"),
        (["model.layers.7.a.weight", "model.norm.weight", "lm_head.weight"], "head, layer 7"),
        (["transformer.h.0.a", "transformer.h.3.a"], "layers 0, 3"),
        (["0.weight"], ""),
    ],
)
def test_what_a_rank_holds_in_words(names: list[str], words: str) -> None:
    assert what_it_holds(names) == words


def trained(model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Train a step, after which the gradients stay."""
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, SIZE, device=device)).sum().backward()
    optimizer.step()
    return optimizer


def check_measured(found: RankMemory) -> None:
    """Assert the sizes of a linear layer with a bias, in fp32."""
    numbers = SIZE * SIZE + SIZE
    assert (found.parameters, found.gradients) == (4 * numbers, 4 * numbers)
    # Adam's two moments of each number; its counters of steps are on the host.
    assert found.optimizer in (8 * numbers, 8 * numbers + 8)


def check_host() -> None:
    """On a rank: the same for a model on the host."""
    model = nn.Linear(SIZE, SIZE)
    found = measure_memory(model, trained(model, torch.device("cpu")), device=torch.device("cpu", 0))
    check_measured(found)
    assert found.device == "cpu"
    assert found.reserved <= found.peak <= found.total
    assert memory_report([found]).startswith("memory of 1 rank\nRank ")


@on_ranks(2)
def test_on_devices_and_on_the_host() -> None:
    """Rank 1 keeps a tensor besides, and is named."""
    rank = torch.distributed.get_rank()
    device = torch.device("npu", rank)
    torch.npu.set_device(device)
    model = nn.Linear(SIZE, SIZE).to(device)
    optimizer = trained(model, device)
    kept: list[Any] = [torch.zeros(EXTRA, dtype=torch.uint8, device=device)] if rank == 1 else []
    mine = measure_memory(model, optimizer, reset_peak=True)
    check_measured(mine)
    assert mine.allocated == torch.npu.memory_allocated(device)
    assert mine.used >= mine.reserved >= mine.allocated
    again = measure_memory(model, optimizer)
    assert again.peak == mine.allocated, "the peak is that of the time since the last measurement"
    everyone = memory_of_all(again)
    assert [each.device for each in everyone] == ["npu:0", "npu:1"]
    assert everyone[1].peak - everyone[0].peak >= EXTRA * len(kept)
    text = memory_report(everyone, simulated=True)
    assert "Rank 1: " in text
    check_host()
