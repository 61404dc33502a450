"""``accelerate launch`` with a configuration file: training program and loops train as in one process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.npu import rank_environment
from tests.harness.pool import RankPool
from tests.hf_integration.documents.machines import ROOT, free_port, program
from tests.hf_integration.launched import work_at
from tests.hf_integration.runs import logged
from tests.hf_integration.starting import SHORT
from tests.hf_integration.test_npu_accelerator import Loop, train

FLAGS = {
    "replicas": ["--per_device_train_batch_size", "4"],
    "tensor": ["--per_device_train_batch_size", "8", "--tensor_model_parallel_size", "2"],
}
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
def loop_in_one() -> dict[str, Any]:
    """The loop in one process, with accelerate's own accelerator."""
    return train(Loop(options={"plain": True}, clip=1.0, constant=True))


def work_of(start: Path, folder: Path, clipped_by_launch: bool) -> dict[str, Any]:
    """Return what launched.py is to do: as replicas and divided, with the program and in the loop."""
    clipped = {"deepspeed": {"gradient_clipping": 1.0, "zero_optimization": {"stage": 1}}}
    clipped["deepspeed"] |= dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
    )
    divided: dict[str, Any] = {"pipeline_parallel": 2, "micro_batches": 2, "replicas": 1}
    loops = {"replicas": {"replicas": 2}, "stages": divided if clipped_by_launch else divided | clipped}
    common = ["--model_name_or_path", str(start), *SHORT, "--sample_tokens", "0", "--output_dir"]
    replicas, tensor = ([*flags, *common, str(folder / name)] for name, flags in FLAGS.items())
    work: dict[str, Any] = {"first": [replicas], "last": [tensor]}
    work["loops"] = {str(folder / f"{name}.json"): given for name, given in loops.items()}
    return work


def assert_trained(folder: Path, program: Path, loop: dict[str, Any]) -> None:
    """Compare what launched.py did with the program and the loop in one process."""
    for name in FLAGS:
        for key in ("loss", "grad_norm", "eval_loss"):
            assert logged(folder / name, key) == pytest.approx(logged(program, key), rel=1e-4), (name, key)
    for name in ("replicas", "stages"):
        found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        assert found["losses"] == pytest.approx(loop["losses"], rel=1e-5), name
        assert found["last"] == pytest.approx(loop["last"], rel=1e-5), name


@pytest.mark.npu
def test_a_launch_with_deepspeed(
    start: Path, in_one_process: Callable[..., Path], loop_in_one: dict[str, Any], tmp_path: Path
) -> None:
    work = work_of(start, tmp_path, clipped_by_launch=True)
    (tmp_path / "work.json").write_text(json.dumps(work), encoding="utf-8")
    (tmp_path / "accelerate.yaml").write_text(DEEPSPEED, encoding="utf-8")
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
    assert_trained(tmp_path, in_one_process(8), loop_in_one)


def environment_of(config: Path) -> dict[str, str]:
    """Return the variables that ``accelerate launch`` adds to the environment of several NPUs' ranks."""
    from accelerate.commands import launch

    options = launch.launch_command_parser().parse_args(["--config_file", str(config), "launched.py"])
    options, _, _ = launch._validate_launch_command(options)
    assert options.multi_gpu, "it would call another launcher"
    wanted = launch.prepare_multi_gpu_env(options)
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


@pytest.mark.npu
def test_several_npus(
    rank_pool: RankPool,
    start: Path,
    in_one_process: Callable[..., Path],
    loop_in_one: dict[str, Any],
    tmp_path: Path,
) -> None:
    """Ranks of the pool, which cost no start, in the environment that accelerate makes for its own."""
    (tmp_path / "accelerate.yaml").write_text(SEVERAL_NPUS, encoding="utf-8")
    environment = environment_of(tmp_path / "accelerate.yaml")
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
    rank_pool.preload("deepspeed", "hf_integration.job", "tests.hf_integration.test_npu_accelerator")
    with rank_pool.world(2, None, env=environment) as world:
        world.run(work_at, free_port(), work_of(start, tmp_path, clipped_by_launch=False), timeout=250)
    assert_trained(tmp_path, in_one_process(8), loop_in_one)
