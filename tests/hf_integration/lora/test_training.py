"""LoRA at tp × pp × dp against peft and the plain Trainer in one process with the same global batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from hf_integration.errors import TrainingInputError
from tests.hf_integration.divided import Record, Run, train, train_on_rank
from tests.hf_integration.lora.adapting import (
    PlainPeft,
    adapting,
    given_a_peft_model,
    loaded,
    logits_sum,
    loss_of,
    merged_under_zero3,
    saved,
    saved_and_merged,
    sums,
    tensors,
)
from tests.pipeline.conftest import Ranks

# peft takes the bias of an adapter for a matrix that was not gathered. The controller of pytest-xdist would
# import peft to hand the warning on, and there transformers finds torch_npu without an NPU.
pytestmark = pytest.mark.filterwarnings(r"ignore:Adapter .* LoRA tensor\(s\) have invalid shape")

TOLERANCE = 1e-5
RUNS = {
    "llama": adapting(
        "llama", tp=2, pp=2, after=saved_and_merged, flags={"pipeline_schedule": "zb-v", "virtual_stages": 2}
    ),
    "qwen2": adapting("qwen2", pp=2, dp=2, flags={"zero_stage": 1, "pipeline_schedule": "zb-h1"}),
    "gpt2": adapting("gpt2", tp=2, dp=2, after=saved_and_merged),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the plain runs leave their adapters."""
    return tmp_path_factory.mktemp("plain")


@pytest.fixture(scope="module")
def one(folder: Path) -> dict[str, Record]:
    """Plain peft and the plain Trainer, by family."""
    runs = {family: replace(adapting(family), kind=PlainPeft, after=saved) for family in RUNS}
    return {family: train(run, folder / family) for family, run in runs.items()}


def compare(records: list[Record], wanted: Record, first: int = 0) -> None:
    """Assert that every rank logged what one process did, from a step on."""
    for record in records:
        for key in ("loss", "grad_norm"):
            assert record.values(key)[first:] == pytest.approx(wanted.values(key)[first:], rel=TOLERANCE), key


@pytest.mark.npu
@pytest.mark.parametrize("family", RUNS)
def test_losses_norms_and_files(
    four: Ranks, one: dict[str, Record], folder: Path, family: str, tmp_path: Path
) -> None:
    run = RUNS[family]
    records = four.run(train_on_rank, run, tmp_path, "hccl", timeout=250)
    compare(records, one[family])
    if run.after is not None:
        check_files(records, run, tmp_path, folder / family / "adapters")


def check_files(records: list[Record], run: Run, here: Path, plain: Path) -> None:
    """Assert that adapters and merged model are what peft would have written, and evaluate to one loss."""
    evaluated = records[0].after["eval_loss"]
    assert loss_of(loaded(run.family, here / "adapters"), here) == pytest.approx(evaluated, rel=TOLERANCE)
    merged = AutoModelForCausalLM.from_pretrained(here / "merged")
    assert loss_of(merged, here) == pytest.approx(evaluated, rel=TOLERANCE)
    files = [json.loads((each / "adapter_config.json").read_text()) for each in (here / "adapters", plain)]
    for told in files:
        told["target_modules"] = sorted(told["target_modules"])
    assert files[0] == files[1]
    wanted = tensors(plain)
    assert {name: each.shape for name, each in tensors(here / "adapters").items()} == {
        name: each.shape for name, each in wanted.items()
    }
    for record in records:  # nothing but adapters has gradients, or a place in the optimizer
        assert record.after["exp_avg"] == record.after["trained"] < sum(map(_count, wanted.values())) + 1
        assert record.after["gradients of frozen"] == 0


def _count(tensor: object) -> int:
    return tensor.numel()  # type: ignore[attr-defined]


@pytest.mark.npu
def test_a_run_goes_on_at_other_layouts(four: Ranks, one: dict[str, Record], tmp_path: Path) -> None:
    run = adapting("qwen2", flags={"save_strategy": "steps", "save_steps": 3, "allow_layout_change": True})
    first = replace(run.at(2, 2, 1), stop_at=3)
    four.run(train_on_rank, first, tmp_path / "first", "hccl", timeout=250)
    checkpoint = str(tmp_path / "first" / "checkpoint-3")
    assert loaded("qwen2", Path(checkpoint)) is not None
    again = replace(run, resume=checkpoint)
    second = replace(again.at(2, 1, 2), flags={**run.flags, "zero_stage": 2})
    records = four.run(train_on_rank, second, tmp_path / "second", "hccl", timeout=250)
    compare(records, one["qwen2"], first=3)
    compare([train(again, tmp_path / "third")], one["qwen2"], first=3)


@pytest.mark.npu
def test_dropout_is_alike_where_inputs_are_and_repeated_by_recomputation(four: Ranks, tmp_path: Path) -> None:
    """Ranks that share a layer keep equal what each of them has whole; attention drops as well."""
    run = adapting("gpt2", {"lora_dropout": 0.3}, kind=given_a_peft_model, after=sums, steps=4)
    plain, again = (
        four.run(train_on_rank, replace(run.at(2, 2, 1), flags=flags), tmp_path / "x", "hccl", timeout=250)
        for flags in ({}, {"gradient_checkpointing": True})
    )
    for one_rank, same in zip(plain, again, strict=True):
        assert one_rank.values("loss") == plain[0].values("loss") == same.values("loss")
        assert one_rank.after == same.after
    for first, second in ((plain[0].after, plain[1].after), (plain[2].after, plain[3].after)):
        whole = {name for name in first if ("c_proj" in name) == (".lora_B." in name)}
        assert {name for name in first if first[name] == second[name]} == whole


@pytest.mark.npu
def test_weights_that_zero3_has_divided_are_merged_whole(four: Ranks, tmp_path: Path) -> None:
    run = adapting("llama", flags={"zero_stage": 3}, layers=2, steps=2, after=merged_under_zero3)
    records = four.run(train_on_rank, run.at(1, 1, 4), tmp_path, "hccl", timeout=250)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert logits_sum(merged) == pytest.approx(records[0].after, rel=TOLERANCE)


def refusal_on_rank(run: Run, folder: Path) -> str:
    """Return why a run is refused on this rank."""
    with pytest.raises(TrainingInputError) as caught:
        train_on_rank(run, folder, "hccl")
    return str(caught.value)


@pytest.mark.npu
def test_a_pipeline_rank_with_nothing_to_train_is_refused_on_all(four: Ranks, tmp_path: Path) -> None:
    settings = {"target_modules": ["c_fc"], "layers_to_transform": [0]}
    run = adapting("gpt2", settings).at(1, 2, 2)
    for message in four.run(refusal_on_rank, run, tmp_path, timeout=250):
        assert message.startswith(
            "pipeline rank 1 of 2 has no layer with an adapter, and so nothing to train"
        )
