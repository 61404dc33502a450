"""shard_model in a training run: micro-batches, recomputation, dropout, generation, clipping, marks."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.checkpoint import load_sharded
from npu_plugins.comm import gradient_norm
from npu_plugins.tensor_parallel.sharding import shard_model
from tests.checkpoint.folders import shared_folder
from tests.harness.fixtures import on_ranks
from tests.tensor_parallel.models import CASES, PRELOAD, Case, batch, make_model, worst_difference
from tests.tensor_parallel.test_sharding import as_stored, compare_training, make_mesh

QWEN3 = next(case for case in CASES if case.name.startswith("qwen3"))
GPT2 = next(case for case in CASES if case.name.startswith("gpt2"))
LLAMA = next(case for case in CASES if case.name.startswith("llama, 1 kv"))


def gradients(model: Any, group: Any) -> dict[str, torch.Tensor]:
    return {name: as_stored(name, p, group, p.grad) for name, p in model.named_parameters()}


def accumulate(model: Any, device: torch.device, micro_batches: int = 3) -> None:
    for step in range(micro_batches):
        model(**{key: value.to(device) for key, value in batch(step).items()}).loss.backward()


def check_accumulation(mesh: Any) -> None:
    """Three backward passes before a step; transformers 5.24 sums the head norms' gradients again in each."""
    for case in (QWEN3, LLAMA):
        whole = make_model(case).to(mesh.device)
        sharded = shard_model(copy.deepcopy(whole), mesh)
        accumulate(whole, mesh.device)
        accumulate(sharded, mesh.device)
        expected = {name: p.grad for name, p in whole.named_parameters()}
        difference, name = worst_difference(gradients(sharded, mesh.group("tp")), expected)
        assert difference < 5e-6, (case.name, name, difference)


def check_a_loaded_model_trains(mesh: Any) -> None:
    """What shard_model arranged on the meta device holds for the loaded parameters."""
    for case in (QWEN3, LLAMA, GPT2):
        folder = shared_folder(mesh)
        whole = make_model(case)
        if mesh.global_rank == 0:
            whole.save_pretrained(folder)
        dist.barrier()
        loaded = load_sharded(folder, mesh)
        accumulate(whole, torch.device("cpu"))
        accumulate(loaded, mesh.device)
        found = {name: gradient.cpu() for name, gradient in gradients(loaded, mesh.group("tp")).items()}
        expected = {name: p.grad for name, p in whole.named_parameters()}
        difference, name = worst_difference(found, expected)
        assert difference < 2e-5, (case.name, name, difference)


def check_gathered_plans(mesh: Any) -> None:
    """Attention whose projections are gathered computes all heads on every rank: any number of them goes."""
    changes = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}
    olmo = Case("olmo2", "Olmo2Config", changes)
    phi = Case("phi3", "Phi3Config", {"num_key_value_heads": 1})
    theirs = {
        "model.layers.*.self_attn.qkv_proj": "colwise_gather_output",
        "model.layers.*.self_attn.o_proj": "rowwise_split_input",
        "model.layers.*.mlp.gate_up_proj": "colwise_rep",
        "model.layers.*.mlp.down_proj": "rowwise_rep",
        "model.embed_tokens": "embedding_colwise",
        "model.norm": "replicate",
    }
    assert compare_training(olmo, mesh, torch.float32, 5e-6) == ""
    assert compare_training(phi, mesh, torch.float32, 5e-6, plan=theirs) == ""


def check_gradient_norm(mesh: Any) -> None:
    """Every parameter counts once: divided, replicated, and key-value heads that ranks share."""
    for case in (QWEN3, LLAMA, GPT2):
        whole = make_model(case).to(mesh.device)
        sharded = shard_model(copy.deepcopy(whole), mesh)
        accumulate(whole, mesh.device, 1)
        accumulate(sharded, mesh.device, 1)
        expected = torch.nn.utils.get_total_norm([p.grad for p in whole.parameters()])
        torch.testing.assert_close(gradient_norm(sharded.parameters(), mesh), expected, rtol=1e-5, atol=0)


def check_recomputation(mesh: Any) -> None:
    """Activation checkpointing by transformers' own switch, with dropout, gives the same gradients."""
    changes = {**GPT2.changes, "attn_pdrop": 0.3, "resid_pdrop": 0.2}
    sharded = shard_model(make_model(Case("gpt2", "GPT2Config", changes)).to(mesh.device), mesh).train()
    found = []
    for recompute in (False, True):
        if recompute:
            sharded.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(7)
        sharded.zero_grad()
        accumulate(sharded, mesh.device, 2)
        found.append(gradients(sharded, mesh.group("tp")))
    difference, name = worst_difference(found[1], found[0])
    assert difference < 1e-6, (name, difference)


def check_dropout(mesh: Any) -> None:
    """Equal heads are dropped differently on each rank, the sum of all heads alike on all ranks."""
    config = {"attn_pdrop": 0.5, "resid_pdrop": 0.5, "tie_word_embeddings": False}
    whole = make_model(Case("gpt2", "GPT2Config", config)).to(mesh.device)
    attention = whole.transformer.h[0].attn
    with torch.no_grad():
        weight = attention.c_attn.weight.view(32, 3, 4, 8)
        weight.copy_(weight[:, :, :1].expand_as(weight).clone())
        bias = attention.c_attn.bias.view(3, 4, 8)
        bias.copy_(bias[:, :1].expand_as(bias).clone())
    sharded = shard_model(whole, mesh).train()
    seen: dict[str, torch.Tensor] = {}
    attention = sharded.transformer.h[0].attn
    attention.c_proj.register_forward_pre_hook(lambda module, args: seen.update(own=args[0].detach()))
    attention.register_forward_hook(lambda module, args, output: seen.update(all=output[0].detach()))
    torch.manual_seed(3)
    sharded(input_ids=batch(0)["input_ids"].to(mesh.device))
    for key, same in (("own", False), ("all", True)):
        ranks = [torch.empty_like(seen[key]) for _ in range(mesh.size("tp"))]
        dist.all_gather(ranks, seen[key].contiguous(), group=mesh.group("tp"))
        assert all(torch.equal(other, ranks[0]) for other in ranks[1:]) is same, key
    sharded.eval()
    sharded(input_ids=batch(0)["input_ids"].to(mesh.device))
    own = [torch.empty_like(seen["own"]) for _ in range(mesh.size("tp"))]
    dist.all_gather(own, seen["own"].contiguous(), group=mesh.group("tp"))
    assert torch.allclose(own[1], own[0]), "the heads are not equal to begin with"


def check_generation(mesh: Any) -> None:
    """`generate` with its cache finds the same tokens."""
    for case in (LLAMA, GPT2):
        whole = make_model(case).to(mesh.device).eval()
        sharded = shard_model(copy.deepcopy(whole), mesh).eval()
        ids = batch(0)["input_ids"][:, 1:].to(mesh.device)
        options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        mask = torch.ones_like(ids)
        expected = whole.generate(ids, attention_mask=mask, **options)
        assert torch.equal(sharded.generate(ids, attention_mask=mask, **options), expected), case.name


def check_bf16(mesh: Any) -> None:
    """In bf16 the loss is the whole model's as near as bf16 is."""
    assert compare_training(GPT2, mesh, torch.bfloat16, 5e-2) == ""


CHECKS = (
    check_accumulation,
    check_a_loaded_model_trains,
    check_gathered_plans,
    check_gradient_norm,
    check_recomputation,
    check_dropout,
    check_generation,
    check_bf16,
)


@on_ranks(4, backend="gloo", timeout=120, preload=PRELOAD)
def test_training_runs_on_4_ranks() -> None:
    mesh = make_mesh(4)
    for check in CHECKS:
        check(mesh)


@on_ranks(2, timeout=120, preload=PRELOAD)
def test_training_runs_on_npus() -> None:
    mesh = make_mesh(2)
    for check in CHECKS:
        check(mesh)
