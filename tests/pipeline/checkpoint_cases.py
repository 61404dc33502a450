"""What ranks run in test_checkpoints.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from tests.pipeline.models import Case, layers, loss_fn, make_optimizer, train_whole
from tests.pipeline.running import make_engine, train, use_cpu


def resume(backend: str, schedule: str, zero: int, directory: str) -> None:
    """Two steps, saved; loaded into a new engine, whose further steps are those of an unbroken run."""
    case = Case(schedule, tied=True, zero=zero, steps=4)
    wanted = train(case, backend, 2).losses
    first = make_engine(case, backend, 2)
    for step in range(2):
        first.train_batch(case.batches(step))
    first.save_checkpoint(directory, tag="two")
    names = sorted(path.name for path in Path(directory, "two").glob("layer_*"))
    # Tied layers with a function of their own are no modules to DeepSpeed: it writes the first copy's file.
    assert names == [f"layer_{index:02d}-model_states.pt" for index in range(case.blocks + 1)]
    first.destroy()
    second = make_engine(case, backend, 2)
    with torch.no_grad():
        for parameter in second.module.parameters():
            parameter.add_(1.0)
    second.load_checkpoint(directory, tag="two")
    assert second.global_steps == 2
    losses = [second.train_batch(case.batches(step)).item() for step in (2, 3)]
    assert max(abs(a - b) / b for a, b in zip(losses, wanted[2:], strict=True)) < 1e-6
    second.destroy()


def with_tensor_parallelism(backend: str) -> None:
    """A mesh of tp 2 × pp 2: divided layers in a pipeline train like whole ones, with split backwards too."""
    if backend == "gloo":
        use_cpu()
    import deepspeed
    from deepspeed.pipe import LayerSpec

    from ds_configs.parallel import ParallelConfig
    from npu_plugins.comm import ProcessMesh
    from npu_plugins.pipeline.module import PipelineModule
    from npu_plugins.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from tests.pipeline.models import WIDTH, Block

    deepspeed.init_distributed(backend)
    mesh = ProcessMesh.create(ParallelConfig(tp=2, pp=2))
    half = slice(mesh.rank("tp") * WIDTH, (mesh.rank("tp") + 1) * WIDTH)

    class Divided(Block):
        """A block whose two linear layers are divided, with the weights of the whole one."""

        def __init__(self, seed: int, dropout: float) -> None:
            super().__init__(seed, dropout)
            up, down = self.up, self.down
            group = mesh.group("tp")
            self.up = ColumnParallelLinear(WIDTH, 2 * WIDTH, group=group, seed=1)
            self.down = RowParallelLinear(2 * WIDTH, WIDTH, group=group, bias=False, seed=1)
            with torch.no_grad():
                self.up.weight.copy_(up.weight[half])
                self.up.bias.copy_(up.bias[half])
                self.down.weight.copy_(down.weight[:, half])

    for schedule in ("1f1b", "zb-h1", "zb-v"):
        case = Case(schedule, tied=True, clip=0.3, optimizer="SGD", steps=3)
        specs = [
            LayerSpec(Divided, *spec.module_args) if spec.typename is Block else spec for spec in layers(case)
        ]
        config = case.ds_config()
        model = PipelineModule(specs, loss_fn=loss_fn, mesh=mesh, config=config)
        optimizer = make_optimizer(model.parameters(), case)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        losses = [engine.train_batch(case.batches(step)).item() for step in range(case.steps)]
        wanted = train_whole(replace(case)).losses
        assert max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True)) < 1e-5, (
            schedule,
            losses,
            wanted,
        )
        engine.destroy()
    dist.barrier()
