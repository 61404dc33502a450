"""torch_npu's mixture-of-experts operators beside index arithmetic."""

from __future__ import annotations

import torch

from tests.simulator.attention_cases import make
from tests.simulator.fused_cases import close, compare


def check_permutation(dtype: torch.dtype, tokens: int, copies: int, experts: int) -> None:
    """Tokens go to the order of their experts and come back as the sum of their weighted copies."""
    size = 6
    chosen = torch.stack([torch.randperm(experts)[:copies] for _ in range(tokens)])
    values = [make((tokens, size), 0, dtype), make((tokens, copies), 1, dtype)]
    on_npu = [value.npu().requires_grad_() for value in values]
    on_cpu = [value.float().requires_grad_() for value in values]
    permuted, order = torch.ops.npu.npu_moe_token_permute(on_npu[0], chosen.npu())
    by_expert = chosen.flatten().argsort(stable=True)
    assert torch.equal(order.cpu().long(), by_expert.argsort())
    plain_permuted = on_cpu[0][by_expert // copies]
    close(permuted, plain_permuted, dtype)
    returned = torch.ops.npu.npu_moe_token_unpermute(permuted * 2, order, on_npu[1])
    plain = (2 * plain_permuted[by_expert.argsort()].unflatten(0, (-1, copies)) * on_cpu[1][..., None]).sum(1)
    compare((returned,), (plain,), on_npu, on_cpu, dtype)


def check_routing_map(capacity: int | None) -> None:
    """The same by a boolean map, with all choices kept or with a fixed number of tokens an expert."""
    tokens, experts, copies, size = 5, 4, 2, 6
    chosen = torch.zeros(tokens, experts, dtype=torch.bool)
    for row in range(tokens):
        chosen[row, torch.randperm(experts)[:copies]] = True
    kept = tokens * copies if capacity is None else experts * capacity
    values = [make((tokens, size), 0, torch.float32), make((tokens, experts), 1, torch.float32)]
    on_npu = [value.npu().requires_grad_() for value in values]
    on_cpu = [value.clone().requires_grad_() for value in values]
    permuted, weights, order = torch.ops.npu.npu_moe_token_permute_with_routing_map(
        on_npu[0], chosen.npu(), probs=on_npu[1], num_out_tokens=kept, drop_and_pad=capacity is not None
    )
    if capacity is None:
        token = torch.arange(tokens).expand(experts, -1)[chosen.t()]
        plain_weights = on_cpu[1].t()[chosen.t()]
    else:
        token = chosen.t().byte().argsort(dim=-1, descending=True, stable=True)[:, :capacity].flatten()
        plain_weights = on_cpu[1].t()[torch.arange(experts).repeat_interleave(capacity), token]
    compare((permuted, weights), (on_cpu[0][token], plain_weights), on_npu, on_cpu, torch.float32)

    rows = make((kept, size), 2, torch.float32)
    npu_leaves = [rows.npu().requires_grad_(), values[1].npu().requires_grad_()]
    cpu_leaves = [rows.clone().requires_grad_(), values[1].clone().requires_grad_()]
    back = torch.ops.npu.npu_moe_token_unpermute_with_routing_map(
        npu_leaves[0], order, [tokens, size], probs=npu_leaves[1], routing_map=chosen.npu(),
        drop_and_pad=capacity is not None,
    )  # fmt: skip
    expert = torch.arange(experts)[:, None].expand(-1, tokens)[chosen.t()]
    if capacity is not None:
        expert = torch.arange(experts).repeat_interleave(capacity)
    weighted = cpu_leaves[0] * cpu_leaves[1][token, expert][:, None]
    plain = torch.zeros(tokens, size).index_add(0, token, weighted)
    compare((back,), (plain,), npu_leaves, cpu_leaves, torch.float32)


def check_grouped_products(dtype: torch.dtype, lengths: list[int]) -> None:
    """Rows of several experts in one tensor, each group times its own weight; and the weights' gradient."""
    inner, outer = 6, 4
    x, weight = make((sum(lengths), inner), 0, dtype), make((len(lengths), inner, outer), 1, dtype)
    ends = torch.tensor(lengths).cumsum(0)
    plain = torch.cat([part @ weight[i].float() for i, part in enumerate(x.float().split(lengths))])
    for kind, groups in ((0, ends), (1, torch.tensor(lengths))):
        out = torch.ops.npu.npu_grouped_matmul(
            [x.npu()],
            [weight.npu()],
            group_list=groups.npu(),
            split_item=3,
            group_type=0,
            group_list_type=kind,
        )
        close(out[0], plain, dtype)
    grad = make((sum(lengths), outer), 2, dtype)
    total = torch.ones(len(lengths), inner, outer)
    ours = total.npu()
    torch.ops.npu.npu_grouped_matmul_add_(ours, x.npu(), grad.npu(), ends.npu())
    parts = zip(x.float().split(lengths), grad.float().split(lengths), strict=True)
    close(ours, total + torch.stack([a.t() @ b for a, b in parts]), dtype)
