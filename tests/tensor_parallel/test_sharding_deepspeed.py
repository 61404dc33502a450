"""A Hugging Face model divided by shard_model, under DeepSpeed with ZeRO 0-3, trains like one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.harness.fixtures import on_ranks
from tests.tensor_parallel.models import PRELOAD, Case, batch, make_model
from tests.tensor_parallel.test_sharding import make_mesh

TP, DP, STEPS, CLIP, RATE = 2, 2, 4, 0.5, 0.1

# Everything that counts once or is summed: tied vocabulary with padding, head norms, a key-value head that
# ranks share.
CASE = Case("qwen3", "Qwen3Config", {"tie_word_embeddings": True, "head_dim": 16, "num_key_value_heads": 1})


def reference() -> tuple[list[float], list[float]]:
    """Losses and gradient norms of one process on the CPU that sees both replicas' batches."""
    model = make_model(CASE)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = sum(model(**batch(step * DP + replica)).loss for replica in range(DP)) / DP
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def train(mesh: Any, stage: int) -> tuple[list[float], list[float]]:
    """The same with DeepSpeed: the mean loss of the replicas, and DeepSpeed's norm."""
    import deepspeed
    import torch.distributed as dist

    from npu_plugins.comm import count_once
    from npu_plugins.tensor_parallel import shard_model

    model = shard_model(make_model(CASE).to(mesh.device), mesh)
    count_once(model.parameters(), mesh)
    config = {
        "train_batch_size": 2 * DP,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, mpu=mesh)
    losses, norms = [], []
    for step in range(STEPS):
        inputs = batch(step * DP + mesh.rank("dp"))
        loss = engine(**{key: value.to(mesh.device) for key, value in inputs.items()}).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=mesh.group("dp"))
        losses.append(mean.item() / DP)
        norms.append(float(engine.get_global_grad_norm() or 0))  # stage 0 in fp32 keeps none
    engine.destroy()
    return losses, norms


@on_ranks(TP * DP, timeout=200, preload=("deepspeed", *PRELOAD))
def test_zero_0_to_3_over_two_replicas_of_two_ranks() -> None:
    import deepspeed

    deepspeed.init_distributed("hccl")
    mesh = make_mesh(TP, DP)
    losses, norms = reference()
    assert min(norms) > CLIP, "clipping must do something"
    for stage in (0, 1, 2, 3):
        found = train(mesh, stage)
        assert found[0] == pytest.approx(losses, rel=1e-5), f"stage {stage}"
        if stage > 0:
            assert found[1] == pytest.approx(norms, rel=1e-5), f"stage {stage}"
