"""The checks of a running training: clean runs pass, and a fault on one rank ends all of them, named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.hf_integration.divided import Run, Sentences, make_model
from tests.hf_integration.scenarios.conftest import Trained, small
from tests.pipeline.conftest import Ranks

CHECKS = {"check_gradients": 1, "check_memory": 2, "find_nonfinite": True}
NORM = "model.layers.1.input_layernorm.weight"
PROJECTION = "model.layers.1.mlp.down_proj"


def told(trainer: Any) -> str:
    """Train, and return what ends it."""
    from npu_plugins.diagnostics import DiagnosticsError

    try:
        trainer.train()
    except DiagnosticsError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def checked(run: Run, fault: TrainerCallback | None = None) -> Run:
    """Return the run with all checks, and a fault that comes before them."""
    flags = {**CHECKS, **run.flags}
    callbacks = {"callbacks": [] if fault is None else [fault]}
    return replace(run, steps=3, flags=flags, trains=False, after=told, trainer=callbacks)


class Flip(TrainerCallback):
    """Flips a bit on one rank: of a gradient before step 2, or of a parameter after it."""

    def __init__(self, rank: int, name: str, of: str) -> None:
        self.rank, self.name, self.of = rank, name, of

    def on_reduced_gradients(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Flip the gradient's."""
        self.trained = given["model"]
        if self.of == "gradient" and state.global_step == 1:
            self.flip(given["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Flip the parameter's."""
        if self.of == "parameter" and state.global_step == 2:
            self.flip(self.trained)

    def flip(self, model: Any) -> None:
        """Flip bit 13 of the third element."""
        from npu_plugins.diagnostics.consistency.holdings import held_gradient, holders

        if torch.distributed.get_rank() != self.rank:
            return
        for name, parameter in holders(model):
            if name == self.name:
                tensor = held_gradient(parameter) if self.of == "gradient" else parameter.data
                assert tensor is not None
                tensor.view(-1).view(torch.int32)[2] ^= 1 << 13


class Poison(TrainerCallback):
    """Makes a module return nan on one rank, in step 2."""

    def __init__(self, rank: int, name: str) -> None:
        self.rank, self.name = rank, name

    def on_reduced_gradients(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Plant the fault when step 1 ends."""
        from npu_plugins.diagnostics.consistency.holdings import bare
        from npu_plugins.diagnostics.nonfinite.finder import _module_names

        if torch.distributed.get_rank() != self.rank or state.global_step != 0:
            return
        module = bare(given["model"])
        names = _module_names(module)
        for path, each in module.named_modules():
            if names.get(path, path) == self.name:
                each.register_forward_hook(lambda module, args, output: output * float("nan"), prepend=True)


LAYOUTS: list[tuple[tuple[int, int, int], dict[str, Any]]] = [
    ((1, 1, 4), {}),
    ((2, 1, 2), {"zero_stage": 0}),
    ((2, 2, 1), {"zero_stage": 0}),
    ((1, 2, 2), {"zero_stage": 1}),
    ((2, 1, 2), {"zero_stage": 2}),
]


@pytest.mark.parametrize(("layout", "flags"), LAYOUTS, ids=str)
def test_clean_runs_pass_every_check(
    on_four: Trained, layout: tuple[int, int, int], flags: dict[str, Any], tmp_path: Path
) -> None:
    from npu_plugins.diagnostics.records import read_records

    run = checked(small(micro_batches=4, family="qwen2", flags=flags)).at(*layout)
    assert {record.after for record in on_four(run)} == {""}
    folder = tmp_path / "".join(map(str, layout))
    parameters = read_records(folder, "parameters", "--check_gradients")
    assert [each["step"] for each in parameters] == [0, 1, 2, 3]
    assert all(each["tensors"] > 0 and not each["differences"] for each in parameters)
    gradients = folder / "checks" / "gradients.jsonl"
    assert gradients.exists() == (flags.get("zero_stage", 0) == 0)
    (memory,) = read_records(folder, "memory", "--check_memory")
    assert [each["rank"] for each in memory["ranks"]] == [0, 1, 2, 3]


EMBEDDING = "model.embed_tokens.weight"
FLIPPED: list[tuple[tuple[int, int, int], int, str, str, int, str]] = [
    ((1, 1, 4), 0, "gradient", NORM, 2, "dp ranks 0, 1, 2, 3: rank 2 differs from ranks 0, 1, 3"),
    ((2, 1, 2), 0, "gradient", NORM, 1, "dp ranks 1, 3: ranks 1, 3 differ, and no majority"),
    ((2, 2, 1), 0, "gradient", NORM, 3, "tp ranks 2, 3: ranks 2, 3 differ, and no majority"),
    ((2, 2, 1), 0, "gradient", EMBEDDING, 3, "tied ranks 1, 3: ranks 1, 3 differ, and no majority"),
    ((1, 2, 2), 1, "parameter", NORM, 3, "dp ranks 2, 3: ranks 2, 3 differ, and no majority"),
]


@pytest.mark.parametrize(("layout", "stage", "of", "name", "rank", "words"), FLIPPED, ids=str)
def test_a_flipped_bit_ends_the_run_and_is_named(
    on_four: Trained, layout: tuple[int, int, int], stage: int, of: str, name: str, rank: int, words: str
) -> None:
    flags = {} if layout == (1, 1, 4) else {"zero_stage": stage}
    family = "qwen2" if name == EMBEDDING else "llama"
    run = checked(small(micro_batches=4, flags=flags, family=family), Flip(rank, name, of)).at(*layout)
    (text,) = {record.after for record in on_four(run)}
    assert text.startswith(f"InconsistentRanksError: {of}s at step 2 differ between ranks\n{name}: ")
    assert words in text
    assert f"bit 13 alone; 1 of {32 if name == NORM else 1024} differ" in text
    assert "further" not in text


@pytest.mark.parametrize(
    ("layout", "rank", "place"),
    [
        ((1, 1, 4), 2, ""),
        ((2, 1, 2), 3, " (tp 1, dp 1)"),
        ((1, 2, 2), 2, " (pp 1, dp 0)"),
    ],
    ids=str,
)
def test_the_module_that_makes_nan_is_named(
    on_four: Trained, layout: tuple[int, int, int], rank: int, place: str
) -> None:
    run = checked(small(micro_batches=4), Poison(rank, PROJECTION)).at(*layout)
    (text,) = {record.after for record in on_four(run)}
    assert text.startswith(
        "NonFiniteError: step 2: the first value that is not finite came up on "
        f"rank {rank}{place} in the forward of {PROJECTION}, whose inputs and parameters are finite: "
    )


class FlipLate(Flip):
    """Flips the gradient's bit where a plain Trainer's callbacks are called."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Flip it."""
        self.on_reduced_gradients(args, state, control, **given)


def plain(folder: Path, fault: TrainerCallback | None) -> str:
    """On a rank: train with transformers' own Trainer and the checks as callbacks."""
    from hf_integration.checks import CheckGradients, CheckMemory, FindNonFinite

    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=3,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    callbacks = [*([fault] if fault else []), FindNonFinite(), CheckGradients(1), CheckMemory(3)]
    return told(
        Trainer(make_model("llama", 2), args, train_dataset=Sentences(76, seed=1), callbacks=callbacks)
    )


def test_plain_trainer_takes_the_checks_as_callbacks(four_cpus: Ranks, tmp_path: Path) -> None:
    assert set(four_cpus.run(plain, tmp_path, None)) == {""}
    assert {path.name for path in (tmp_path / "checks").iterdir()} == {
        "gradients.jsonl",
        "parameters.jsonl",
        "memory.jsonl",
    }
    (text,) = set(four_cpus.run(plain, tmp_path, FlipLate(1, NORM, "gradient")))
    assert f"{NORM}: gradient differs between the dp ranks 0, 1, 2, 3: rank 1 differs" in text
