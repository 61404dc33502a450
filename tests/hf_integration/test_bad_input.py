"""What cannot be trained on is refused in one sentence by all ranks, whatever the degrees, and none hangs."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hf_integration.byte_tokenizer import build_byte_tokenizer
from tests.harness.pool import RankPool
from tests.hf_integration.divided import Run, Sentences, train, train_on_rank
from tests.pipeline.conftest import Ranks, kept

LAYOUTS = ((2, 2, 1), (1, 2, 2), (2, 1, 2), (1, 1, 4))
"""(tp, pp, dp) on four ranks."""


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.job")
    yield from kept(rank_pool, 4, "hccl")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and texts that something is wrong with."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("files")
    tokenizer = build_byte_tokenizer()
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 264}
    models = {
        "unplanned": AutoConfig.for_model(
            "opt", **sizes, ffn_dim=32, word_embed_proj_dim=24, max_position_embeddings=64
        ),
        "narrow": AutoConfig.for_model("llama", **{**sizes, "vocab_size": 100}, intermediate_size=32),
        "three_heads": AutoConfig.for_model(
            "llama", **{**sizes, "num_attention_heads": 3}, intermediate_size=32, num_key_value_heads=3
        ),
    }
    for name, config in models.items():
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "empty.txt").write_text("", encoding="utf-8")
    (folder / "one_line.txt").write_text("one line\n", encoding="utf-8")
    (folder / "one_record.jsonl").write_text('{"text": "one line"}\n', encoding="utf-8")
    (folder / "broken.jsonl").write_text('{"text": "one"}\n{"text": \n', encoding="utf-8")
    return folder


def refused(lines: list[list[str]]) -> list[tuple[int, str]]:
    """Return the exit status and the standard error of the training program, for each command line."""
    from hf_integration.train import main

    found = []
    for argv in lines:
        said = io.StringIO()
        # Its process group is the world's, and stays.
        with contextlib.redirect_stderr(said), mock.patch("hf_integration.job.leave_process_group"):
            status = main(argv)
        found.append((status, said.getvalue()))
    return found


def program_cases(files: Path) -> dict[str, tuple[list[str], Mapping[tuple[int, int, int], str]]]:
    """Flags of the program, and what it says at each layout where that is refused."""
    tiny = ["--config_name", "tiny-llama"]
    everywhere = {
        "an empty file": ([*tiny, "--train_file", str(files / "empty.txt")], "empty.txt"),
        "one line": ([*tiny, "--train_file", str(files / "one_line.txt")], "shorter than one sequence"),
        "one record": (
            [*tiny, "--task", "sft", "--train_file", str(files / "one_record.jsonl")],
            "makes 1 sequence",
        ),
        "a broken record": (
            [*tiny, "--task", "sft", "--train_file", str(files / "broken.jsonl")],
            "line 2 of .*broken.jsonl",
        ),
        "blocks longer than the model": ([*tiny, "--block_size", "4096"], "longer than the 1024 positions"),
        "a tokenizer larger than the embedding": (
            ["--model_name_or_path", str(files / "narrow")],
            "tokens but the embedding of .* only 100 rows",
        ),
        "no model": (["--model_name_or_path", str(files)], "no directory with a config.json"),
    }
    cases: dict[str, Any] = {
        name: (flags, dict.fromkeys(LAYOUTS, message)) for name, (flags, message) in everywhere.items()
    }
    data = ["--block_size", "32", "--stdlib_bytes", "20000"]
    by_stages = "OPTForCausalLM cannot be split into stages; those that can are .*LlamaForCausalLM, Qwen2"
    cases["a class that cannot be divided"] = (
        ["--model_name_or_path", str(files / "unplanned"), *data],
        {
            (2, 2, 1): by_stages,
            (1, 2, 2): by_stages,
            (2, 1, 2): "OPTForCausalLM carries no tensor-parallel plan .* use a model of gpt2, phi3",
        },
    )
    cases["heads that the degree does not divide"] = (
        ["--model_name_or_path", str(files / "three_heads"), *data],
        dict.fromkeys([(2, 2, 1), (2, 1, 2)], "3 .*heads"),
    )
    return cases


@pytest.mark.npu
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_program_says_one_sentence_and_ends_with_2(
    four: Ranks, files: Path, layout: tuple[int, int, int], tmp_path: Path
) -> None:
    cases = {name: case for name, case in program_cases(files).items() if layout in case[1]}
    degrees = [
        "--tensor_model_parallel_size",
        str(layout[0]),
        "--pipeline_model_parallel_size",
        str(layout[1]),
    ]
    more = ["--max_steps", "2", "--report_to", "none", "--output_dir", str(tmp_path)]
    lines = [[*flags, *degrees, *more] for flags, _ in cases.values()]
    for rank, found in enumerate(four.run(refused, lines, timeout=200)):
        for (name, (_, messages)), (status, said) in zip(cases.items(), found, strict=True):
            assert status == 2, (name, said)
            assert "Traceback" not in said, name
            sentences = [line for line in said.splitlines() if line.startswith("train.py: ")]
            assert len(sentences) == (rank == 0), (name, said)
            if rank == 0:
                assert re.search(messages[layout], sentences[0]), (name, sentences[0])


@pytest.mark.npu
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tensor_model_parallel_size", "3"], "tp=3 × pp=1 does not divide 4 ranks"),
        (["--pipeline_model_parallel_size", "8"], "tp=1 × pp=8 does not divide 4 ranks"),
        (["--pipeline_timeline", "3"], "settings pipeline_timeline need stages"),
        (
            ["--pipeline_model_parallel_size", "2", "--pipeline_timeline", "0"],
            "--pipeline_timeline is 0; give an optimizer step",
        ),
    ],
)
def test_degrees_that_do_not_divide_the_ranks(
    four: Ranks, flags: list[str], message: str, tmp_path: Path
) -> None:
    argv = ["--config_name", "tiny-llama", *flags, "--output_dir", str(tmp_path), "--max_steps", "2"]
    found = [each[0] for each in four.run(refused, [[*argv, "--report_to", "none"]], timeout=200)]
    assert [status for status, _ in found] == [2] * 4
    assert message in found[0][1]


class OneIsLong(Sentences):
    """Sequences for 32 positions, of which one has 40 tokens."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        return row if index != 5 else {key: value[:1].repeat(40) for key, value in row.items()}


def untrainable() -> dict[str, tuple[Run, str]]:
    """What a script may give the Trainer, and what it says."""
    from transformers import AutoConfig, AutoModelForCausalLM

    small = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32}
    opt = AutoConfig.for_model("opt", **small, vocab_size=64, word_embed_proj_dim=24)
    singly = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1}
    return {
        "a tokenizer larger than the embedding": (
            Run(trainer={"processing_class": build_byte_tokenizer()}),
            "tokens but the embedding of the model only 64 rows",
        ),
        "no sample": (Run(trainer={"train_dataset": []}), "train_dataset is empty"),
        "no sample to evaluate": (
            Run(steps=1, trainer={"eval_dataset": []}, flags={"eval_strategy": "steps", "eval_steps": 1}),
            "eval_dataset is empty",
        ),
        "one sequence that is too long": (
            Run(steps=9, trainer={"train_dataset": OneIsLong(8, seed=1)}, flags=singly),
            "a sequence of 40 tokens is longer than the 32 positions",
        ),
        "one sequence to evaluate that is too long": (
            Run(trains=False, trainer={"eval_dataset": OneIsLong(8, seed=1)}, flags=singly, after=evaluate),
            "a sequence of 40 tokens is longer than the 32 positions",
        ),
        "a class that cannot be divided": (
            Run(trainer={"model": AutoModelForCausalLM.from_config(opt)}),
            "OPTForCausalLM cannot be divided over tp",
        ),
    }


def evaluate(trainer: Any) -> Any:
    """Evaluate."""
    return trainer.evaluate()


def refused_by_the_trainer(layout: tuple[int, int, int], folder: Path) -> dict[str, str]:
    """Return what the Trainer said to each thing it refused."""
    from hf_integration.errors import TrainingInputError

    said = {}
    for name, (run, _) in untrainable().items():
        if name == "a class that cannot be divided" and layout[:2] == (1, 1):
            continue
        try:
            train_on_rank(run.at(*layout), folder, "hccl")
        except TrainingInputError as error:
            said[name] = str(error)
    return said


@pytest.mark.npu
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_trainer_refuses_on_every_rank(four: Ranks, layout: tuple[int, int, int], tmp_path: Path) -> None:
    wanted = {name: message for name, (_, message) in untrainable().items()}
    if layout[:2] == (1, 1):
        del wanted["a class that cannot be divided"]
    for said in four.run(refused_by_the_trainer, layout, tmp_path, timeout=250):
        assert said.keys() == wanted.keys()
        for name, message in wanted.items():
            assert message in said[name], name


@pytest.mark.npu
@pytest.mark.parametrize("layout", [(2, 2, 1), (1, 2, 2), (2, 1, 2)], ids=str)
def test_one_sample_is_enough(four: Ranks, layout: tuple[int, int, int], tmp_path: Path) -> None:
    run = Run(steps=2, rows=1, trainer={"eval_dataset": Sentences(1, seed=2)}, after=evaluate)
    wanted = train(run, tmp_path / "one")
    for record in four.run(train_on_rank, run.at(*layout), tmp_path / "four", "hccl", timeout=200):
        assert record.values("loss") == pytest.approx(wanted.values("loss"), rel=1e-5)
        assert record.after["eval_loss"] == pytest.approx(wanted.after["eval_loss"], rel=1e-5)
