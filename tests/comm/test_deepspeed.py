"""DeepSpeed with `mpu=mesh`: ZeRO 0–3 over dp trains a model divided over tp like one process does."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm.mpu import MegatronGetters
from tests.accelerator.conftest import KeptWorld
from tests.accelerator.reference import MICRO_BATCH, batch, make_model
from tests.harness.fixtures import on_ranks

DP = 2
ACCUMULATION = 2
STEPS = 5
CLIP = 0.2
LEARNING_RATES = {"SGD": 0.5, "AdamW": 1e-3}
BOUNDS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}  # relative, of each step's loss and gradient norm

# Getters of Ulysses, which DeepSpeed asks for only after seeing that they are there.
NOT_ASKED_OF_AN_MPU = {"initialize_sequence_parallel"} | {
    f"get_sequence_{kind}parallel_{what}"
    for kind in ("", "data_")
    for what in ("group", "rank", "world_size")
}


def test_the_mesh_has_every_getter_that_deepspeed_asks_for() -> None:
    """Its source is searched, so that a new release with a new getter shows here."""
    asked = set()
    for path in Path(deepspeed.__file__).parent.rglob("*.py"):
        asked |= set(re.findall(r"\bmpu\.((?:get|initialize)_\w+)", path.read_text(encoding="utf-8")))
    assert len(asked) > 20, "the search finds what is there"
    assert asked - NOT_ASKED_OF_AN_MPU - set(dir(MegatronGetters)) == set()
    assert not NOT_ASKED_OF_AN_MPU & set(dir(MegatronGetters)), "DeepSpeed would take these for Ulysses"


@on_ranks(8, preload=("deepspeed",))
def test_getters_answer_what_deepspeeds_own_grid_answers() -> None:
    from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology

    from npu_plugins.comm import ProcessMesh

    deepspeed.init_distributed("hccl")
    mesh = ProcessMesh.create(ParallelConfig(tp=2, dp=2, pp=2))
    grid = PipelineParallelGrid(PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2))
    shared = {name for name in dir(grid) if name.startswith("get_")} & set(dir(mesh))
    assert len(shared) >= 12
    for name in shared:
        ours, theirs = getattr(mesh, name)(), getattr(grid, name)()
        if name.endswith("_group"):
            ours, theirs = (torch.distributed.get_process_group_ranks(group) for group in (ours, theirs))
        assert ours == theirs, name


def optimizer_of(parameters: Any, name: str) -> torch.optim.Optimizer:
    """The optimizer of both sides."""
    rate = LEARNING_RATES[name]
    if name == "SGD":
        return torch.optim.SGD(parameters, lr=rate)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)


def micro_batches(step: int, dp_rank: int) -> list[torch.Tensor]:
    """What a data-parallel rank sees at a step."""
    return [batch(10 * step + index, dp_rank) for index in range(ACCUMULATION)]


def reference(optimizer_name: str, clip: float) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of one process in plain torch on the CPU, that sees all batches."""
    model = make_model()
    optimizer = optimizer_of(model.parameters(), optimizer_name)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        batches = [tokens for dp_rank in range(DP) for tokens in micro_batches(step, dp_rank)]
        loss = sum(model(tokens) for tokens in batches) / len(batches)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def ds_config(stage: int, clip: float, precision: str = "fp32", **zero: Any) -> dict[str, Any]:
    """A DeepSpeed configuration whose batch triple is complete and consistent for dp 2 only."""
    halves = {"bf16": {"enabled": True}, "fp16": {"enabled": True, "loss_scale": 128.0}}
    return {
        "train_batch_size": MICRO_BATCH * ACCUMULATION * DP,
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": clip,
        "zero_optimization": {"stage": stage, **zero},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **({} if precision == "fp32" else {precision: halves[precision]}),
    }


def train(config: dict[str, Any], degrees: ParallelConfig, optimizer_name: str) -> dict[str, Any]:
    """On a rank: train the divided model under DeepSpeed."""
    import deepspeed

    from npu_plugins.comm import ProcessMesh, broadcast_batch, check_same_batch, count_once
    from tests.comm.divided_model import make_divided

    deepspeed.init_distributed("hccl")
    mesh = ProcessMesh.create(degrees)
    model = make_divided(mesh)
    count_once(model.parameters(), mesh)
    optimizer = None if "optimizer" in config else optimizer_of(model.parameters(), optimizer_name)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, mpu=mesh)
    sampler = engine.deepspeed_io([0] * 8).data_sampler
    losses, norms = [], []
    for step in range(STEPS):
        total = 0.0
        for tokens in micro_batches(step, mesh.rank("dp")):
            tokens = broadcast_batch(tokens if mesh.rank("tp") == 0 else None, mesh)
            check_same_batch(tokens, mesh)
            loss = engine(tokens)
            engine.backward(loss)
            engine.step()
            total += loss.item() / ACCUMULATION
        losses.append(total)
        norm = engine.get_global_grad_norm()
        norms.append(None if norm is None else float(norm))
    report = {
        "losses": losses,
        "norms": norms,
        "place": mesh.coordinate()._asdict(),
        "train batch": engine.train_batch_size(),
        "dp": engine.dp_world_size,
        "mp rank": engine.checkpoint_mp_rank,
        "samples of": (sampler.rank, sampler.num_replicas),
    }
    engine.destroy()
    mesh.destroy()
    return report


def compare(reports: list[dict[str, Any]], optimizer_name: str, clip: float, precision: str = "fp32") -> None:
    """Assert that all ranks agree, and that they trained like one process."""
    for report in reports:
        assert report["train batch"] == MICRO_BATCH * ACCUMULATION * DP
        assert report["dp"] == DP and report["mp rank"] == report["place"]["tp"]
        assert report["samples of"] == (report["place"]["dp"], DP), "DeepSpeed's own loader goes by dp"
    first = [report for report in reports if report["place"]["tp"] == 0]
    for report in reports:
        peer = first[report["place"]["dp"]]
        assert (report["losses"], report["norms"]) == (peer["losses"], peer["norms"]), (
            "tp ranks agree to the bit"
        )
    losses, norms = reference(optimizer_name, clip)
    mean = [sum(step) / DP for step in zip(*(report["losses"] for report in first), strict=True)]
    assert mean == pytest.approx(losses, rel=BOUNDS[precision])
    assert losses[-1] < losses[0] - 0.05, "the reference itself learns nothing"
    if clip:
        assert min(norms) > clip, "every step is clipped"
    for found, wanted in zip(first[0]["norms"], norms, strict=True):
        assert found is None or found == pytest.approx(wanted, rel=BOUNDS[precision])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_over_a_divided_model(four_ranks: KeptWorld, stage: int) -> None:
    """With SGD a wrong norm changes the step in proportion; Adam would hide a constant factor."""
    reports = four_ranks.run(train, ds_config(stage, CLIP), ParallelConfig(tp=2, dp=DP), "SGD")
    compare(reports, "SGD", CLIP)
    if stage:
        assert None not in reports[0]["norms"]


def test_without_clipping(four_ranks: KeptWorld) -> None:
    reports = four_ranks.run(train, ds_config(3, 0.0), ParallelConfig(tp=2, dp=DP), "AdamW")
    compare(reports, "AdamW", 0.0)


@pytest.mark.parametrize("stage", [2, 3])
def test_optimizer_on_the_host(four_ranks: KeptWorld, stage: int) -> None:
    """Offload takes the norm on another path of DeepSpeed's."""
    config = ds_config(stage, CLIP, offload_optimizer={"device": "cpu"})
    compare(four_ranks.run(train, config, ParallelConfig(tp=2, dp=DP), "SGD"), "SGD", CLIP)


@pytest.mark.parametrize(("stage", "precision"), [(0, "bf16"), (1, "bf16"), (3, "fp16")])
def test_half_precision(four_ranks: KeptWorld, stage: int, precision: str) -> None:
    """Stage 0 is not tried in fp16: DeepSpeed 0.19.8 divides gradients there by a loss scale that it never
    multiplied the loss by (runtime/engine.py:3417), whether the model is divided or not."""
    config = ds_config(stage, CLIP, precision)
    config["optimizer"] = {"type": "AdamW", "params": {"lr": LEARNING_RATES["AdamW"], "weight_decay": 0.01}}
    reports = four_ranks.run(train, config, ParallelConfig(tp=2, dp=DP), "FusedAdam")
    compare(reports, "AdamW", CLIP, precision)
    assert None not in reports[0]["norms"]


def test_half_precision_with_an_optimizer_of_torch(four_ranks: KeptWorld) -> None:
    """At stage 0 DeepSpeed looks for the mark of a divided parameter on its gradient: see count_once."""
    config = ds_config(0, CLIP, "bf16")
    reports = four_ranks.run(train, config, ParallelConfig(tp=2, dp=DP), "SGD")
    compare(reports, "SGD", CLIP, "bf16")
    assert None not in reports[0]["norms"]


def interrupt(config: dict[str, Any], folder: str) -> list[list[float]]:
    """On a rank: losses after a checkpoint, without and with an interruption."""
    import deepspeed

    from npu_plugins.comm import ProcessMesh
    from tests.comm.divided_model import make_divided

    deepspeed.init_distributed("hccl")
    mesh = ProcessMesh.create(ParallelConfig(tp=2, dp=DP))

    def start() -> Any:
        model = make_divided(mesh)
        optimizer = optimizer_of(model.parameters(), "AdamW")
        return deepspeed.initialize(model=model, optimizer=optimizer, config=config, mpu=mesh)[0]

    def losses(engine: Any, steps: range) -> list[float]:
        found = []
        for step in steps:
            for tokens in micro_batches(step, mesh.rank("dp")):
                loss = engine(tokens.to(mesh.device))
                engine.backward(loss)
                engine.step()
                found.append(loss.item())
        return found

    engine = start()
    losses(engine, range(2))
    engine.save_checkpoint(folder, tag="two")
    expected = losses(engine, range(2, 4))
    engine.destroy()
    engine = start()
    assert engine.load_checkpoint(folder, tag="two")[0] is not None
    resumed = losses(engine, range(2, 4))
    engine.destroy()
    mesh.destroy()
    return [expected, resumed]


def test_a_run_resumes_from_its_checkpoint(four_ranks: KeptWorld, tmp_path: Path) -> None:
    """Every tp rank writes its own files: mp_rank_00 and mp_rank_01."""
    for expected, resumed in four_ranks.run(interrupt, ds_config(3, CLIP), str(tmp_path)):
        assert resumed == expected
    names = {path.name for path in (tmp_path / "two").iterdir()}
    assert {
        f"zero_pp_rank_{dp}_mp_rank_{tp:02}_model_states.pt" for dp in range(DP) for tp in (0, 1)
    } <= names
