"""The norm of a gradient divided over tp, pp and ep is that of the whole, as torch has it in one process."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import CommError, ProcessMesh, clip_grad_norm_, count_once, gradient_norm
from tests.harness import World
from tests.harness.fixtures import on_ranks

NORMS = (2.0, 1.0, 3.0, math.inf)
MAX_NORM = 0.7


class Part(NamedTuple):
    """One gradient of the whole model, and where its parts lie."""

    name: str
    gradient: torch.Tensor
    stage: int | None
    """Pipeline stage; None: on every stage, the first one's being the original."""
    divided: bool
    expert: int | None = None
    """Place on the ep axis; None: no expert."""


def whole(config: ParallelConfig) -> list[Part]:
    """A model of the mesh's shape: on each stage a replicated and a divided parameter, experts; one tied."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    parts = [Part("tied", draw(8, 4), None, True)]
    for stage in range(config.pp):
        parts += [Part(f"norm {stage}", draw(5), stage, False), Part(f"up {stage}", draw(8, 3), stage, True)]
        if config.ep > 1:
            parts += [Part(f"expert {stage}.{e}", draw(8, 3), stage, True, e) for e in range(config.ep)]
    return parts


def held(part: Part, mesh: ProcessMesh, dtype: torch.dtype) -> nn.Parameter | None:
    """This rank's parameter for a part, marked by the conventions; None if the part lies elsewhere."""
    if part.stage not in (None, mesh.rank("pp")) or part.expert not in (None, mesh.rank("ep")):
        return None
    gradient = part.gradient.chunk(mesh.size("tp"))[mesh.rank("tp")] if part.divided else part.gradient
    parameter = nn.Parameter(torch.zeros_like(gradient, dtype=dtype, device=mesh.device))
    parameter.grad = gradient.to(mesh.device, dtype, copy=True)
    if part.divided:
        parameter.tensor_model_parallel = True
    if part.expert is not None:
        parameter.allreduce = False
    if part.stage is None and mesh.rank("pp") > 0:
        parameter.ds_pipe_replicated = True
    return parameter


def expected(parts: list[Part], norm_type: float) -> tuple[float, list[torch.Tensor]]:
    """The norm and the clipped gradients of the whole model, by torch's own clipping in one process."""
    parameters = [nn.Parameter(torch.zeros_like(part.gradient)) for part in parts]
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.gradient.clone()
    norm = nn.utils.clip_grad_norm_(parameters, MAX_NORM, norm_type)
    return norm.item(), [parameter.grad for parameter in parameters]


def check_clipping(config: ParallelConfig) -> None:
    """On a rank: norms and clipped gradients of every kind of norm equal those of the whole model."""
    mesh = ProcessMesh.create(config)
    parts = whole(config)
    for norm_type in NORMS:
        mine = [held(part, mesh, torch.float32) for part in parts]
        parameters = [parameter for parameter in mine if parameter is not None]
        parameters.append(nn.Parameter(torch.zeros(3)))  # one without a gradient
        norm = clip_grad_norm_(parameters, MAX_NORM, mesh, norm_type=norm_type)
        reference, clipped = expected(parts, norm_type)
        assert norm.device == mesh.device and norm.dtype == torch.float32
        assert norm.item() == pytest.approx(reference, rel=1e-6)
        for part, gradient, parameter in zip(parts, clipped, mine, strict=True):
            if parameter is not None:
                wanted = held(part._replace(gradient=gradient), mesh, torch.float32)
                torch.testing.assert_close(parameter.grad, wanted.grad, rtol=1e-6, atol=0)
    mesh.destroy()


CONFIGS = [
    ParallelConfig(tp=2, dp=2, pp=2, ep=2),
    ParallelConfig(tp=4, dp=2),
    ParallelConfig(tp=8),
    ParallelConfig(dp=4, pp=2, ep=4),
    ParallelConfig(dp=8),
]


@pytest.mark.ranks(8, backend="gloo")
def test_norm_and_clipping_are_those_of_the_whole_model(ranks: World) -> None:
    for config in CONFIGS:
        ranks.run(check_clipping, config)


@on_ranks(4)
def test_clipping_on_npus() -> None:
    check_clipping(ParallelConfig(tp=2, pp=2))
    check_clipping(ParallelConfig(tp=2, dp=2))


@on_ranks(4)
def test_deepspeeds_own_clipping_counts_replicated_parameters_of_every_stage_once() -> None:
    """Without the marks of count_once it leaves out those of the stages after the first."""
    import deepspeed
    from deepspeed.runtime.utils import clip_grad_norm_ as deepspeed_clip
    from deepspeed.utils import groups

    deepspeed.init_distributed("hccl")
    mesh = ProcessMesh.create(ParallelConfig(tp=2, pp=2))
    groups.mpu = mesh  # as deepspeed.initialize(mpu=mesh) does
    parts = whole(mesh.config)
    parameters = [p for p in (held(part, mesh, torch.float32) for part in parts) if p is not None]
    reference, _ = expected(parts, 2.0)
    if mesh.rank("pp"):  # DeepSpeed counts every divided parameter here, so the tied copy must not be one
        parameters[0].tensor_model_parallel = False
    unmarked = deepspeed_clip(parameters, math.inf, mpu=mesh).item()
    count_once(parameters, mesh)
    count_once(parameters, mesh)
    assert deepspeed_clip(parameters, math.inf, mpu=mesh).item() == pytest.approx(reference, rel=1e-6)
    left_out = parts[3].gradient
    assert unmarked**2 == pytest.approx(reference**2 - left_out.square().sum().item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@on_ranks(2, backend="gloo")
def test_norms_of_half_precision_gradients_are_taken_in_fp32(dtype: torch.dtype) -> None:
    """In fp16 the squares of these would overflow, in bf16 the sum would stop growing at 256."""
    mesh = ProcessMesh.create(ParallelConfig(tp=2))
    parameter = nn.Parameter(torch.zeros(4096, dtype=dtype))
    parameter.tensor_model_parallel = True
    parameter.grad = torch.full_like(parameter, 512.0)
    norm = clip_grad_norm_([parameter], 1.0, mesh)
    assert norm.item() == pytest.approx(512.0 * math.sqrt(2 * 4096), rel=1e-6)
    assert parameter.grad.dtype == dtype
    assert parameter.grad.float().norm().item() * math.sqrt(2) == pytest.approx(1.0, rel=4e-3)


@on_ranks(2, backend="gloo")
def test_infinite_gradients_show_and_impossible_arguments_are_refused() -> None:
    mesh = ProcessMesh.create(ParallelConfig(tp=2))
    parameter = nn.Parameter(torch.zeros(3))
    parameter.tensor_model_parallel = True
    parameter.grad = torch.full((3,), math.inf if dist.get_rank() else 1.0)
    assert gradient_norm([parameter], mesh).item() == math.inf, "also on the rank whose own are finite"
    assert gradient_norm([], mesh).item() == 0.0
    assert clip_grad_norm_(iter([parameter]), math.inf, mesh).isinf(), "a generator is fine"
    for arguments, options, sentence in [
        (([parameter], -1.0, mesh), {}, "max_norm is -1.0; give a norm of 0 or more"),
        (([parameter], math.nan, mesh), {}, "max_norm is nan"),
        (
            ([parameter], 1.0, mesh),
            {"norm_type": 0.0},
            "norm_type is 0.0; give a number above 0, or math.inf",
        ),
    ]:
        with pytest.raises(CommError, match=sentence):
            clip_grad_norm_(*arguments, **options)
    parameter = nn.Parameter(torch.zeros(3, device="meta"))
    parameter.grad = torch.zeros(3, device="meta")
    with pytest.raises(
        CommError, match=r"gradient of shape \[3\] is on meta, but the mesh communicates on cpu"
    ):
        gradient_norm([parameter], mesh)
