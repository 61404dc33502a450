"""Layers with more than trained parameters, saved and loaded at other layouts: what ranks run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from npu_plugins.checkpoint import CheckpointError
from tests.pipeline.layout_cases import convert
from tests.pipeline.running import use_cpu

WIDTH, MICRO_BATCHES = 8, 4


class Shared(nn.Module):
    """A weight that two layers use, and a bias that belongs to each of them."""

    def __init__(self, with_bias: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if with_bias else None


class Counting(nn.Module):
    """A frozen matrix, a trained vector, and a buffer that counts micro-batches."""

    count: torch.Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3, requires_grad=False)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + torch.tanh(F.linear(x, self.frozen)) * self.scale


def apply_shared(shared: Shared, x: torch.Tensor) -> torch.Tensor:
    """How both layers use it: DeepSpeed writes no file for such layers."""
    return F.linear(x, shared.weight, shared.bias)


def engine_at(stages: int, zero: int = 0, with_bias: bool = False, universal: bool = False) -> Any:
    """Seven layers, of which the first and the last share a weight."""
    use_cpu()
    import deepspeed
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    from npu_plugins.pipeline.module import PipelineModule

    deepspeed.init_distributed("gloo")
    replicas = dist.get_world_size() // stages
    tied = TiedLayerSpec("w", Shared, with_bias, forward_fn=apply_shared, tied_weight_attr="weight")
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICRO_BATCHES // replicas,
        "zero_optimization": {"stage": zero},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "pipeline": {"partition": "uniform"},
        "checkpoint": {"load_universal": universal},
    }
    counting = [LayerSpec(Counting, seed) for seed in range(2, 6)]
    specs = [tied, counting[0], torch.tanh, *counting[1:], tied]
    model = PipelineModule(specs, num_stages=stages, loss_fn=F.mse_loss, config=config)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(engine: Any, steps: range) -> list[float]:
    """The same data at any layout."""
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(2, MICRO_BATCHES, 2, WIDTH, generator=generator)
        first = engine.micro_batches * engine.grid.data_parallel_id
        mine = slice(first, first + engine.micro_batches)
        losses.append(engine.train_batch(iter(list(zip(x[mine], y[mine], strict=True)))).item())
    return losses


def held(engine: Any) -> dict[str, torch.Tensor]:
    """This rank's state."""
    return {name: value.detach().clone() for name, value in engine.module.state_dict().items()}


def go_on(directory: str) -> None:
    """Tied through functions alone, frozen, and buffers: loaded at another number of stages and back."""
    unbroken = engine_at(2, zero=1)
    wanted = train(unbroken, range(4))
    unbroken.destroy()
    first = engine_at(2, zero=1)
    losses = train(first, range(2))
    first.save_checkpoint(directory, tag="odd")
    names = sorted(path.name for path in Path(directory, "odd").glob("layer_*"))
    assert names == [f"layer_{index:02d}-model_states.pt" for index in (0, 1, 3, 4, 5)]
    if dist.get_rank() == 0:
        convert(Path(directory, "odd"), Path(directory, "odd_universal"))
    first.save_checkpoint(directory, tag="thin", exclude_frozen_parameters=True, save_latest=False)
    with pytest.raises(CheckpointError, match=r"lacks \['frozen'\].*load_module_strict=False"):
        first.load_checkpoint(directory, tag="thin")
    first.load_checkpoint(directory, tag="thin", load_module_strict=False)
    first.destroy()
    for stages, universal in ((1, False), (2, False), (1, True)):
        second = engine_at(stages, universal=universal)
        with torch.no_grad():
            for value in second.module.state_dict().values():
                value.add_(7)
        if universal:
            with pytest.raises(CheckpointError, match=r"1.frozen is not trained.*copy the .*layer_"):
                second.load_checkpoint(directory)
            if dist.get_rank() == 0:
                for path in Path(directory, "odd").glob("layer_*"):
                    Path(directory, "odd_universal", path.name).write_bytes(path.read_bytes())
            dist.barrier()
        second.load_checkpoint(directory)
        counts = {name: int(value) for name, value in held(second).items() if "count" in name}
        assert counts and set(counts.values()) == {2 * MICRO_BATCHES}, counts
        further = losses + train(second, range(2, 4))
        assert max(abs(a - b) / b for a, b in zip(further, wanted, strict=True)) < 1e-6, (stages, universal)
        second.destroy()


def own_parts_of_tied_modules(directory: str) -> None:
    """What copies of a tied module do not share comes back at the same layout, and is refused at another."""
    first = engine_at(2, with_bias=True)
    train(first, range(2))
    first.save_checkpoint(directory, tag="own")
    state = held(first)
    wanted = train(first, range(2, 4))
    first.destroy()
    second = engine_at(2, with_bias=True)
    second.load_checkpoint(directory, tag="own")
    for name, value in held(second).items():
        assert torch.equal(value, state[name]), name
    assert train(second, range(2, 4)) == wanted
    second.destroy()
    third = engine_at(1, with_bias=True)
    with pytest.raises(CheckpointError, match=r"tied_modules.w.bias belongs to a tied module.*at pp 2"):
        third.load_checkpoint(directory, tag="own")
    third.destroy()
