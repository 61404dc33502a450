"""Whole runs of supervised fine-tuning on the CPU, and of one process against two."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.models import build_model, model_config
from hf_integration.train import main
from tests.hf_integration.documents.machines import free_port
from tests.hf_integration.runs import ROOT, entries, logged

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}Q: {{ m['content'] }}\nA:"
    "{% else %}{% generation %} {{ m['content'] }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
FLAGS = [
    "--use_cpu",
    "--task",
    "sft",
    "--learning_rate",
    "3e-3",
    "--logging_steps",
    "1",
    "--report_to",
    "none",
]
FLAGS += ["--sample_tokens", "0", "--num_train_epochs", "2", "--validation_fraction", "0.2"]
SAVING = ["--save_strategy", "steps", "--save_steps", "9"]
RECORDS = 34  # 27 to train on: batches of four leave three over


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model to start from, records of unlike length, and a template."""
    folder = tmp_path_factory.mktemp("start")
    tokenizer = build_byte_tokenizer()
    torch.manual_seed(0)
    build_model(model_config(None, "tiny-llama", tokenizer), None).save_pretrained(folder)
    draw = random.Random(1)
    lines = []
    for _ in range(RECORDS):
        turns = []
        for _ in range(draw.randint(1, 3)):
            word = "".join(draw.choices("abcdefg", k=draw.randint(1, 12)))
            turns += [{"role": "user", "content": word}, {"role": "assistant", "content": word.upper()}]
        lines.append(json.dumps({"messages": turns}))
    (folder / "records.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def command(start: Path, output: Path, *flags: str) -> list[str]:
    """Return the arguments of a run from ``start``."""
    argv = [*FLAGS, "--model_name_or_path", str(start), "--tokenizer_name", "bytes"]
    argv += ["--train_file", str(start / "records.jsonl"), "--chat_template", str(start / "template.jinja")]
    return [*argv, *flags, "--output_dir", str(output)]


@pytest.fixture(scope="module")
def reference(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with batches of four, two epochs; it saves after step 9."""
    folder = tmp_path_factory.mktemp("reference")
    assert main([*command(start, folder, "--per_device_train_batch_size", "4"), *SAVING]) == 0
    return folder


def test_answers_are_learnt_and_the_template_is_saved(reference: Path) -> None:
    losses = logged(reference, "loss")
    assert len(losses) == 14
    assert losses[-1] < losses[0] - 1.5
    assert not any("nats_per_byte" in key for entry in entries(reference) for key in entry)
    assert len(logged(reference, "cpu_tokens_per_s")) == 13
    assert (reference / "loss.png").read_bytes().startswith(b"\x89PNG")
    tokenizer = AutoTokenizer.from_pretrained(reference / "model")
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "A"}]
    ids = tokenizer.apply_chat_template(talk, return_dict=False)
    assert ids == [*b"Q: a\nA: A", tokenizer.eos_token_id]


def test_gradients_are_averaged_by_tokens(start: Path, reference: Path, tmp_path: Path) -> None:
    """Accumulated over batches of one, of unlike numbers of answer tokens, they are those of the whole."""
    argv = command(
        start, tmp_path, "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4"
    )
    assert main(argv) == 0
    assert logged(tmp_path, "loss") == pytest.approx(logged(reference, "loss"), rel=1e-5)
    assert logged(tmp_path, "grad_norm") == pytest.approx(logged(reference, "grad_norm"), rel=1e-4)


def test_resumed_run_reads_what_the_first_did_not(start: Path, reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference / "checkpoint-9", tmp_path / "checkpoint-9")
    argv = command(start, tmp_path, "--per_device_train_batch_size", "4", *SAVING)
    assert main([*argv, "--resume_from_checkpoint", str(tmp_path / "checkpoint-9")]) == 0
    assert logged(tmp_path, "loss") == logged(reference, "loss")[9:]


# Runs of two ranks on the CPU, each with the flags of the run of one process that it is to equal.
PACKED = ["--packing", "best_fit", "--block_size", "128", "--per_device_train_batch_size", "2"]
PACKED += ["--gradient_accumulation_steps", "2"]
DIVIDED = {
    "two replicas": ["--per_device_train_batch_size", "2"],
    "tp 2, packed": [*PACKED, "--tensor_model_parallel_size", "2"],
    "pp 2, packed": [*PACKED, "--pipeline_model_parallel_size", "2"],
    "pp 2": ["--per_device_train_batch_size", "4", "--pipeline_model_parallel_size", "2"],
}


@pytest.fixture(scope="module")
def on_two_ranks(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of DIVIDED, one launch; each has a folder with its name."""
    folder = tmp_path_factory.mktemp("divided")
    runs = [command(start, folder / name, *flags) for name, flags in DIVIDED.items()]
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    done = subprocess.run(
        [
            *torchrun,
            "--master_port",
            str(free_port()),
            "tests/hf_integration/runs.py",
            str(folder / "runs.json"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return folder


@pytest.fixture(scope="module")
def packed_reference(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed run of one process."""
    folder = tmp_path_factory.mktemp("packed")
    assert main(command(start, folder, *PACKED)) == 0
    return folder


@pytest.mark.parametrize("name", DIVIDED)
def test_two_ranks_train_as_one_process(
    on_two_ranks: Path, reference: Path, packed_reference: Path, name: str
) -> None:
    """Also at the ends of the epochs, where the last batch is not full and one replica has less of it."""
    expected = packed_reference if "packed" in name else reference
    losses = logged(on_two_ranks / name, "loss")
    assert losses == pytest.approx(logged(expected, "loss"), rel=1e-5)
    norms = logged(on_two_ranks / name, "grad_norm")
    assert norms == pytest.approx(logged(expected, "grad_norm"), rel=1e-4)


def test_packed_run_learns_the_same_tokens(start: Path, tmp_path: Path) -> None:
    """With all records in one step, its loss is that of the records unpacked."""
    step = ["--max_steps", "1", "--per_device_train_batch_size", "32"]
    assert main(command(start, tmp_path / "a", *step)) == 0
    for packing in ("sequential", "best_fit"):
        packed = tmp_path / packing
        assert main(command(start, packed, *step, "--packing", packing, "--block_size", "128")) == 0
        assert logged(packed, "loss") == pytest.approx(logged(tmp_path / "a", "loss"), rel=1e-5)
        assert logged(packed, "grad_norm") == pytest.approx(logged(tmp_path / "a", "grad_norm"), rel=1e-4)


def test_what_was_left_out_is_said_once(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = ["--max_steps", "1", "--block_size", "24", "--long_sequences", "drop"]
    assert main(command(start, tmp_path, *step)) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train.py: ")]
    assert len(said) == 1
    assert said[0].endswith("of the 34 records of --train_file were longer than 24 tokens and left out")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model") is not None
