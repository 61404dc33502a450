"""What shard_model refuses, in one sentence with module, sizes and the mend, leaving the model as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from npu_plugins.comm import CommError
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.sharding import shard_model
from tests.harness.fixtures import on_ranks
from tests.tensor_parallel.models import Case, make_model
from tests.tensor_parallel.test_sharding import make_mesh


def llama(**changes: Any) -> Any:
    return make_model(Case("llama", "LlamaConfig", changes))


def refused(
    message: str, call: Callable[[], Any], model: Any = None, kind: type[Exception] = TensorParallelError
) -> None:
    """Assert that a call is refused with a message, and that the model is as it was."""
    before = [] if model is None else [(n, type(m)) for n, m in model.named_modules()]
    weights = [] if model is None else list(model.parameters())
    try:
        call()
    except kind as error:
        assert re.search(message, str(error)), str(error)
        assert "\n" not in str(error)
    else:
        raise AssertionError(f"not refused: {message}")
    if model is not None:
        assert before == [(n, type(m)) for n, m in model.named_modules()]
        assert all(a is b for a, b in zip(weights, model.parameters(), strict=True))


def check_heads(mesh: Any) -> None:
    for changes, message in (
        ({"num_attention_heads": 6, "num_key_value_heads": 6, "hidden_size": 48},
         r"layers\.0\.self_attn\.q_proj: 6 attention heads cannot be divided over 4 .* among 1, 2, 3, 6"),
        ({"num_attention_heads": 12, "num_key_value_heads": 6, "hidden_size": 48},
         r"q_proj: 6 key-value heads and 4 tensor-parallel ranks: one must divide the other; .*among 1,"),
        ({"intermediate_size": 50},
         r"mlp\.gate_proj: out_features 50 cannot be divided over 4 .*\(1, 2, 5, 10, 25, 50\)"),
    ):  # fmt: skip
        model = llama(**changes)
        refused(message, lambda model=model: shard_model(model, mesh), model)
    phi = make_model(Case("phi3", "Phi3Config", {"num_key_value_heads": 2}))
    refused(
        r"qkv_proj: 2 key-value heads, merged .* choose a tp that divides 2", lambda: shard_model(phi, mesh)
    )
    wrong = make_model(Case("phi3", "Phi3Config"))
    plan = {"model.layers.*.self_attn.o_proj": "merged_qkv"}
    refused(r"o_proj: 32 output features are not the parts \[32, 32, 32\]",
            lambda: shard_model(wrong, mesh, plan=plan), wrong)  # fmt: skip
    single = llama(num_key_value_heads=1)
    del single.model.layers[1].self_attn.num_key_value_groups
    refused(r"layers\.1\.self_attn\.q_proj: 1 key-value heads cannot be .* by 4 .* LlamaAttention has",
            lambda: shard_model(single, mesh), single)  # fmt: skip
    gpt = make_model(Case("gpt2", "GPT2Config", {"n_head": 2}))
    refused(r"h\.0\.attn\.c_attn: 2 attention heads cannot", lambda: shard_model(gpt, mesh), gpt)


def check_plans(mesh: Any) -> None:
    model = llama()
    for plan, message in (
        ({"model.layers.*.mlp.up": "colwise"},
         r"plan= names model\.layers\.\*\.mlp\.up \(colwise\), which LlamaForCausalLM does not have; .*mlp"),
        ({"model.layers.*.mlp.up_proj": "columns"}, r"layers\.0\.mlp\.up_proj: style 'columns' is none"),
        ({"model.layers.*.mlp": "colwise"}, r"layers\.0\.mlp is a LlamaMLP, which style 'colwise' cannot"),
        ({"model.norm": "embedding_rowwise"}, r"norm is a LlamaRMSNorm, which style 'embedding_rowwise'"),
        ({"model.layers.*.mlp.up_proj.weight": "colwise"},
         r"up_proj\.weight: style 'colwise' of a single parameter .*\[48, 32\].*name the mod"),
        ({"model.layers.*.mlp.up_proj": "merged_qkv"}, r"up_proj: style 'merged_qkv' wants a plan of ours"),
        ({"model.layers.*.self_attn.q_proj": "merged_qkv"},
         r"q_proj: style 'merged_qkv' wants a plan of ours for LlamaForCausalLM"),
        ({"model.norm": "mla_kv_a_proj"}, r"model\.norm: .*needs qk_rope_head_dim"),
    ):  # fmt: skip
        refused(message, lambda plan=plan: shard_model(model, mesh, plan=plan), model)
    tied = llama(tie_word_embeddings=True)
    refused(
        r"model\.embed_tokens\.weight is tied to lm_head\.weight, but plan= divides only the first",
        lambda: shard_model(tied, mesh, plan={"model.embed_tokens": "embedding_rowwise"}),
        tied,
    )
    both = {"model.embed_tokens": "embedding_colwise", "lm_head": "colwise_gather_output"}
    refused(r"tied to .* along dim", lambda: shard_model(tied, mesh, plan=both), tied)


def check_models(mesh: Any) -> None:
    refused(
        r"Sequential carries no tensor-parallel plan .* pass plan=",
        lambda: shard_model(nn.Sequential(nn.Linear(4, 4)), mesh),
    )
    limited = llama()
    limited.model.embed_tokens.max_norm = 1.0
    refused(r"model\.embed_tokens: max_norm", lambda: shard_model(limited, mesh), limited)
    base = llama().model
    refused(
        r"gather_logits=False: LlamaModel .* has no output layer",
        lambda: shard_model(base, mesh, gather_logits=False),
        base,
    )
    torch.manual_seed(0)
    other = llama()
    if mesh.rank("tp") == 2:
        with torch.no_grad():
            other.model.norm.weight[3] += 1
    refused(
        r"model\.norm\.weight of LlamaForCausalLM differs between rank 0 and ranks 2 of .*\(1 of \d+",
        lambda: shard_model(other, mesh),
        other,
    )


@on_ranks(4, backend="gloo")
def test_refusals_on_4_ranks() -> None:
    mesh = make_mesh(4)
    check_heads(mesh)
    check_plans(mesh)
    check_models(mesh)


@on_ranks(2)
def test_a_model_that_is_not_on_the_meshs_device_is_refused() -> None:
    from ds_configs.parallel import ParallelConfig
    from npu_plugins.comm import ProcessMesh

    mesh = make_mesh(2)
    model = llama()
    refused(r"The tp group of LlamaForCausalLM uses hccl", lambda: shard_model(model, mesh), model, CommError)
    sequence = ProcessMesh.create(ParallelConfig(tp=2, sequence_parallel=True))
    refused(r"sequence_parallel: the attention modules of Llama", lambda: shard_model(model, sequence), model)


def test_one_rank_leaves_the_model_as_it_is() -> None:
    class OneRank:
        def group(self, axis: str) -> None:
            assert axis == "tp"

    model = nn.Linear(2, 2)
    assert shard_model(model, OneRank()) is model  # type: ignore[arg-type]
