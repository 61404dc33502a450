"""A candidate as the other rooms see it: its ds_config, its memory job, its launch command."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ds_configs.generate import ConfigRequest, generate, notes
from ds_configs.memory import Buckets, MemoryJob
from ds_configs.memory.settings import buckets_of

if TYPE_CHECKING:
    from ds_configs.plan.candidates import Candidate
    from ds_configs.plan.request import PlanRequest

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
NVME_PATH = "/local_nvme"


@lru_cache(maxsize=64)
def zero_keys(stage: int, dtype: str, hidden: int) -> dict[str, Any]:
    """Return ``zero_optimization`` as `ds-config generate` writes it: what is planned is what is written."""
    request = ConfigRequest(
        target="deepspeed", stage=stage, precision=dtype, micro_batch=1, hidden=hidden, optimizer=None
    )
    return generate(request)["zero_optimization"]


def overlaps(stage: int, dtype: str, hidden: int) -> bool:
    """Say whether that configuration communicates beside the computation."""
    return bool(zero_keys(stage, dtype, hidden).get("overlap_comm"))


@lru_cache(maxsize=64)
def _buckets(stage: int, dtype: str, hidden: int) -> Buckets:
    return buckets_of(zero_keys(stage, dtype, hidden), hidden)


def memory_job(request: PlanRequest, candidate: Candidate) -> MemoryJob:
    """Return what the memory model is asked about ``candidate``."""
    job = candidate.job
    return MemoryJob(
        shape=job.shape,
        parallel=job.parallel,
        stage=job.stage,
        dtype=request.dtype,
        micro_batch=job.micro_batch,
        sequence=job.seq,
        accumulation=job.micro_batches,
        recomputation=job.recomputation,
        attention=job.attention,
        schedule=job.schedule,
        chunks=job.virtual_stages,
        offload_optimizer=job.offload_optimizer,
        offload_param=job.offload_param,
        buckets=_buckets(job.stage, request.dtype, job.shape.hidden),
        hccl_buffer=request.hccl_buffer,
    )


def reserve(request: PlanRequest, candidate: Candidate) -> int:
    """Return bytes to leave free too: one more reduce bucket under ZeRO-1 and -2 without offload.

    Its tensors are foretold well (``benchmarks/memory_accuracy.py``), but the allocator does not always find
    room for a large bucket in what it has cached: on simulated NPUs it held 520 MiB where 357 were predicted,
    with a bucket of 191 MiB (``benchmarks/planner_fits.py``).
    """
    job = candidate.job
    if job.stage not in (1, 2) or job.offload_optimizer != "none":
        return 0
    return _buckets(job.stage, request.dtype, job.shape.hidden).reduce * ELEMENT_BYTES[request.dtype]


def ds_config(request: PlanRequest, candidate: Candidate) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration that runs ``candidate``, and what its user must know beside it.

    For ZeRO and AutoTP the file suits HF's Trainer, which fills in the optimizer's numbers; a pipeline, and
    npu_plugins' tensor parallelism, has its own program, so that every value is a value there and the program
    brings its optimizer.
    """
    job = candidate.job
    hf = _by_trainer(candidate)
    zero = {
        key: value
        for key, value in zero_keys(job.stage, request.dtype, job.shape.hidden).items()
        if key not in ("stage", "offload_optimizer", "offload_param")
    }
    asked = ConfigRequest(
        target="hf" if hf else "deepspeed",
        stage=job.stage,
        precision=request.dtype,
        micro_batch=job.micro_batch,
        accumulation=job.micro_batches,
        world_size=request.npus,
        tp=job.parallel.tp,
        tp_by="autotp" if hf else "mpu" if job.parallel.tp > 1 else "autotp",
        pp=job.parallel.pp,
        pipeline=_own_pipeline(candidate),
        hidden=job.shape.hidden,
        clipping=None if _cannot_clip(request, candidate) else "auto",
        optimizer="AdamW" if hf else None,
        offload_optimizer=job.offload_optimizer,
        offload_param=job.offload_param,
        nvme_path=NVME_PATH if "nvme" in (job.offload_optimizer, job.offload_param) else None,
        zero=zero,
    )
    return generate(asked), [*_program_notes(request, candidate), *notes(asked)]


def _by_trainer(candidate: Candidate) -> bool:
    """Whether HF's Trainer runs it with the file alone."""
    return candidate.job.parallel.pp == 1 and not candidate.engine.own


def _own_pipeline(candidate: Candidate) -> dict[str, Any]:
    """Return what npu_plugins' pipeline reads of the section ``pipeline`` besides the stages."""
    job = candidate.job
    if job.parallel.pp == 1 or not candidate.engine.own:
        return {}
    chunks = {"virtual_stages": job.virtual_stages} if job.schedule == "interleaved" else {}
    return {"schedule": job.schedule, **chunks, "recomputation": job.recomputation}


def _cannot_clip(request: PlanRequest, candidate: Candidate) -> bool:
    """At stage 0 DeepSpeed 0.19.8 clips an fp32 pipeline by its first stage's gradients alone."""
    job, deepspeed = candidate.job, not candidate.engine.own
    return deepspeed and request.dtype == "fp32" and job.parallel.pp > 1 and job.stage == 0


def _program_notes(request: PlanRequest, candidate: Candidate) -> list[str]:
    """Say what the file cannot: an engine still to come, and what a program of one's own must do itself."""
    found = []
    if not candidate.engine.today:
        found.append(f"the command needs {candidate.engine.name}")
    if candidate.job.parallel.sequence_parallel:
        found.append(
            "sequence parallelism takes a model of npu_plugins.tensor_parallel's layers; without it "
            "hf_integration/train.py --tensor_model_parallel_size divides Hugging Face models, whose "
            "activations are larger"
        )
    if "nvme" in (candidate.job.offload_optimizer, candidate.job.offload_param):
        found.append(f"nvme_path is {NVME_PATH}; name your drive's folder there")
    if candidate.job.parallel.pp > 1:
        found.append("planned for as many layers a stage: PipelineModule's partition_method='type:LAYER'")
    if candidate.job.recomputation == "full" and candidate.job.parallel.pp > 1 and not candidate.engine.own:
        found.append("full recomputation is PipelineModule's activation_checkpoint_interval=1")
    if candidate.job.shape.moe is not None and candidate.job.stage == 3:
        found.append(
            "name the experts' block to deepspeed.utils.set_z3_leaf_modules, or ranks whose tokens miss an "
            "expert wait for ever"
        )
    if _cannot_clip(request, candidate):
        found.append("gradients are not clipped: DeepSpeed would count the first stage's only in fp32")
    return found


def launch_command(request: PlanRequest, candidate: Candidate, script: str, config_file: str) -> str:
    """Return the command that starts ``candidate``; over several nodes it reads them from ``hostfile``."""
    job, node = candidate.job, request.hardware.node_size
    if request.nodes == 1:
        words = ["deepspeed", f"--num_gpus {request.npus}"]
    else:
        words = ["deepspeed", "--hostfile hostfile", f"--num_nodes {request.nodes}", f"--num_gpus {node}"]
    words += [script, f"--deepspeed {config_file}"]
    if _by_trainer(candidate):
        words.append(f"--per_device_train_batch_size {job.micro_batch}")
        words.append(f"--gradient_accumulation_steps {job.micro_batches}")
        words += [] if request.dtype == "fp32" else [f"--{request.dtype}"]
        words += ["--gradient_checkpointing"] if job.recomputation == "full" else []
    return " ".join(words)
