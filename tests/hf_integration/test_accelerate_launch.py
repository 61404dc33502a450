"""``accelerate launch`` with a configuration file: training program and loops train as in one process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.models import build_model, model_config
from hf_integration.train import main
from tests.harness.npu import rank_environment
from tests.hf_integration.documents.machines import ROOT, free_port, program
from tests.hf_integration.runs import logged
from tests.hf_integration.test_npu_accelerator import Loop, train

RUN = ["--block_size", "16", "--stdlib_bytes", "10000", "--max_eval_blocks", "8", "--logging_steps", "1"]
RUN += ["--max_steps", "3", "--learning_rate", "3e-3", "--disable_tqdm", "true", "--sample_tokens", "0"]
COMMON = """\
compute_environment: LOCAL_MACHINE
machine_rank: 0
main_training_function: main
mixed_precision: 'no'
num_machines: 1
num_processes: 2
"""
SEVERAL_NPUS = COMMON + "distributed_type: MULTI_NPU\n"
DEEPSPEED = (
    COMMON
    + """\
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 1
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 1
"""
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to start from."""
    folder = tmp_path_factory.mktemp("start")
    tokenizer = build_byte_tokenizer()
    torch.manual_seed(0)
    build_model(model_config(None, "tiny-llama", tokenizer), None).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def program_in_one(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training program in one process on the CPU; its folder."""
    folder = tmp_path_factory.mktemp("one")
    flags = ["--use_cpu", "--model_name_or_path", str(start), "--per_device_train_batch_size", "8", *RUN]
    assert main([*flags, "--output_dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def loop_in_one() -> dict[str, Any]:
    """The loop in one process, with accelerate's own accelerator."""
    return train(Loop(options={"plain": True}, clip=1.0, constant=True))


@pytest.mark.npu
@pytest.mark.parametrize("config", [SEVERAL_NPUS, DEEPSPEED], ids=["several NPUs", "DeepSpeed"])
def test_accelerate_launch(
    start: Path, program_in_one: Path, loop_in_one: dict[str, Any], config: str, tmp_path: Path
) -> None:
    clipped = {"deepspeed": {"gradient_clipping": 1.0, "zero_optimization": {"stage": 1}}}
    clipped["deepspeed"] |= dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
    )
    divided: dict[str, Any] = {"pipeline_parallel": 2, "micro_batches": 2, "replicas": 1}
    loops = {"replicas": {"replicas": 2}, "stages": divided if config is DEEPSPEED else divided | clipped}
    flags = {
        "replicas": ["--per_device_train_batch_size", "4"],
        "tensor": ["--per_device_train_batch_size", "8", "--tensor_model_parallel_size", "2"],
    }
    common = ["--model_name_or_path", str(start), *RUN, "--output_dir"]
    replicas, tensor = ([*given, *common, str(tmp_path / name)] for name, given in flags.items())
    work: dict[str, Any] = {"first": [replicas], "last": [tensor]}
    work["loops"] = {str(tmp_path / f"{name}.json"): given for name, given in loops.items()}
    (tmp_path / "work.json").write_text(json.dumps(work), encoding="utf-8")
    (tmp_path / "accelerate.yaml").write_text(config, encoding="utf-8")
    command = [program("accelerate"), "launch", "--config_file", str(tmp_path / "accelerate.yaml")]
    command += ["--main_process_port", str(free_port()), "tests/hf_integration/launched.py"]
    environment = rank_environment() | {"PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{Path(program('accelerate')).parent}:{environment['PATH']}"
    done = subprocess.run(
        [*command, str(tmp_path / "work.json")],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    for name in flags:
        for key in ("loss", "grad_norm", "eval_loss"):
            wanted = logged(program_in_one, key)
            assert logged(tmp_path / name, key) == pytest.approx(wanted, rel=1e-4), (name, key)
    for name in loops:
        found = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        assert found["losses"] == pytest.approx(loop_in_one["losses"], rel=1e-5), name
        assert found["last"] == pytest.approx(loop_in_one["last"], rel=1e-5), name
