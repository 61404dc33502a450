"""What ranks run in test_layouts.py: train, save, load at another layout, and save what was loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from npu_plugins.checkpoint.state import StateIndex, StateReader
from tests.pipeline.conftest import Ranks
from tests.pipeline.running import use_cpu

STEPS = 2


@dataclass(frozen=True)
class Case:
    """An engine of some layout."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    stage: int = 0
    precision: str = "fp32"
    family: str = "llama"
    optimizer: str = "AdamW"
    zero: dict[str, Any] = field(default_factory=dict, hash=False)
    """More settings of ZeRO."""

    def config(self) -> dict[str, Any]:
        """Return the DeepSpeed configuration."""
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 2 if self.pp > 1 else 1,
            "gradient_clipping": 1.0,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": self.stage,
                "stage3_param_persistence_threshold": 100,
                **self.zero,
            },
        }
        if self.precision == "fp16":
            config["fp16"] = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2}
        elif self.precision == "bf16":
            config["bf16"] = {"enabled": True}
        if self.pp > 1:
            config["pipeline"] = {"stages": self.pp}
        return config


def build(case: Case, backend: str) -> tuple[Any, Any]:
    """Return the engine of a case, with weights that no other build has had, and its mesh."""
    if backend == "gloo":
        use_cpu()
    import deepspeed

    from ds_configs.parallel import ParallelConfig
    from hf_integration.engines import divide, make_engine
    from npu_plugins.comm import ProcessMesh
    from tests.hf_integration.divided import make_model

    deepspeed.init_distributed(backend)
    mesh = ProcessMesh.create(ParallelConfig(tp=case.tp, pp=case.pp, dp=case.dp))
    config = case.config()
    module = divide(make_model(case.family), None, mesh, config)
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": 0.1}, {"params": [], "weight_decay": 0.0}]
    for each in module.parameters():
        groups[int(each.dim() < 2)]["params"].append(each)
    settings = {"lr": 1e-2, "momentum": 0.9} if case.optimizer == "SGD" else {"lr": 1e-2}
    return make_engine(module, mesh, config, getattr(torch.optim, case.optimizer)(groups, **settings)), mesh


def step(engine: Any, mesh: Any, number: int) -> None:
    """Take one optimizer step."""
    generator = torch.Generator().manual_seed(100 * number + mesh.rank("dp"))
    ids = torch.randint(0, 64, (2, 1, 8), generator=generator).to(mesh.device)
    if mesh.size("pp") > 1:
        engine.train_batch(iter([(each, each) for each in ids]))
        return
    engine.backward(engine(input_ids=ids[0], labels=ids[0]).loss)
    engine.step()


def scheduler_of(engine: Any) -> Any:
    """Return a schedule of the learning rate, one step behind the optimizer's."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return torch.optim.lr_scheduler.StepLR(inner, step_size=1, gamma=0.5)


def save_at(backend: str, case: Case, folder: Path) -> None:
    """On a rank: train some steps and save."""
    from npu_plugins.checkpoint.state import Trained, save_training_state

    engine, mesh = build(case, backend)
    scheduler = scheduler_of(engine)
    for number in range(STEPS):
        step(engine, mesh, number)
        scheduler.step()
    folder.mkdir(exist_ok=True)
    torch.distributed.barrier()
    save_training_state(Trained.by_engine(engine, mesh, scheduler), folder)
    finish(engine, mesh)


def load_and_save(backend: str, case: Case, source: Path, folder: Path) -> None:
    """On a rank: load what was saved at any layout, after a step that must leave nothing behind; save it."""
    from npu_plugins.checkpoint.state import Trained, load_training_state, save_training_state

    engine, mesh = build(case, backend)
    step(engine, mesh, 50)
    trained = Trained.by_engine(engine, mesh, scheduler_of(engine))
    load_training_state(trained, source)
    folder.mkdir(exist_ok=True)
    torch.distributed.barrier()
    save_training_state(trained, folder)
    finish(engine, mesh)


def finish(engine: Any, mesh: Any) -> None:
    """Let go of the engine and the groups."""
    engine.destroy()
    mesh.destroy()


def chain(backend: str, cases: list[Case], folders: list[Path]) -> None:
    """On a rank: save at the first layout, and load at each what the one before it saved."""
    save_at(backend, cases[0], folders[0])
    for case, source, folder in zip(cases[1:], folders, folders[1:], strict=False):
        load_and_save(backend, case, source, folder)


def check_chain(ranks: Ranks, cases: list[Case], directory: Path) -> None:
    """Assert that every layout saves again what it loaded, to the bit."""
    folders = [directory / str(number) for number in range(len(cases))]
    ranks.run(chain, ranks.backend, cases, folders, timeout=280)
    first, index = contents(folders[0]), StateIndex.read(folders[0] / "training_state")
    assert any(each.abs().max() > 0 for name, each in first.items() if "fp32" not in name)
    for folder in folders[1:]:
        again = contents(folder)
        assert again.keys() == first.keys()
        assert not [name for name in first if not torch.equal(again[name], first[name])]
        assert without_places(StateIndex.read(folder / "training_state")) == without_places(index)


def contents(folder: Path) -> dict[str, torch.Tensor]:
    """Return everything a state holds of parameters, whole."""
    reader = StateReader(folder)
    return {
        f"{name}/{key}": reader.whole(name, key)
        for name, state in reader.index.parameters.items()
        for key in state.tensors
    }


def without_places(index: StateIndex) -> dict[str, Any]:
    """Return what an index says that does not depend on the layout."""
    scale = dict(index.loss_scale or {})
    scale.pop("hysteresis", None)  # the optimizers without ZeRO do not know it
    parameters = {
        name: (state.shape, index.settings[state.settings], state.scalars)
        for name, state in index.parameters.items()
    }
    return {"parameters": parameters, "scheduler": index.scheduler, "loss_scale": scale}
