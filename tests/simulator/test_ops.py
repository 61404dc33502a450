"""Operators on simulated NPUs equal the CPU's: torch's own samples, drawn layouts and the odd corners."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import RankFailure, World
from tests.harness.fixtures import on_ranks

pytestmark = pytest.mark.npu

PARTS = 4

# (dtype, form, how many samples run at least, so that the sweep cannot shrink unnoticed)
SWEEPS = [
    ("float32", "forward", 2300),
    ("float32", "in_place", 400),
    ("float32", "into_out", 1000),
    ("float32", "backward", 1700),
    ("bfloat16", "forward", 1800),
    ("float16", "forward", 1800),
    ("int64", "forward", 1500),
    ("bool", "forward", 1100),
    ("complex64", "forward", 1300),
]


@pytest.mark.ranks(1, backend=None, preload=("tests.simulator.op_sweep",))
@pytest.mark.parametrize(("dtype", "form", "at_least"), SWEEPS)
def test_torchs_own_samples_agree_with_the_cpu(dtype: str, form: str, at_least: int, ranks: World) -> None:
    def body(part: int) -> tuple[int, list[str]]:
        from tests.simulator.op_sweep import sweep

        return sweep(part, PARTS, dtype, form)

    count, complaints = 0, []
    for part in range(PARTS):
        ((ran, found),) = ranks.run(body, part, timeout=120)
        count += ran
        complaints += found
    assert not complaints, "\n".join(complaints)
    assert count >= at_least


@dataclass(frozen=True)
class Recipe:
    """A tensor as plain data: a view of a contiguous tensor of random small integers."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    seed: int

    def build(self) -> torch.Tensor:
        """The tensor on the CPU."""
        generator = torch.Generator().manual_seed(self.seed)

        def fresh(shape: tuple[int, ...]) -> torch.Tensor:
            return torch.randint(-9, 10, shape, generator=generator).to(getattr(torch, self.dtype))

        match self.layout:
            case "transposed":
                return fresh(self.shape[::-1]).permute(*reversed(range(len(self.shape))))
            case "strided":
                return fresh((*self.shape, 2))[..., 1]
            case "sliced":
                return fresh((self.shape[0] + 3, *self.shape[1:]))[2 : self.shape[0] + 2]
            case "expanded":
                return fresh((1, *self.shape[1:])).expand(self.shape)
        return fresh(self.shape)


RECIPES = st.builds(
    Recipe,
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(
        ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool"]
    ),
    layout=st.sampled_from(["contiguous", "transposed", "strided", "sliced", "expanded"]),
    seed=st.integers(0, 9999),
)


def to_npu(tensor: torch.Tensor) -> torch.Tensor:
    """On the NPU with the same strides, offset and storage: the whole storage is copied and viewed anew."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return whole.npu().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def check_pair(one: Recipe, other: Recipe) -> None:
    """Moves, reductions, arithmetic, writes through views and copies of two tensors of equal shape."""
    a, b = one.build(), other.build()
    x, y = to_npu(a), to_npu(b)

    def agree(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
        same = actual.dtype == expected.dtype and actual.shape == expected.shape
        if not same or not torch.equal(actual.cpu(), expected):
            raise AssertionError(f"{name}: {actual} instead of {expected} from {a} and {b}")

    agree("copy to the host", x, a)
    agree("contiguous", x.contiguous(), a.contiguous())
    agree("to float", x.float(), a.float())
    agree("equality", x == y, a == b)
    agree("where", torch.where(x > y, x, y), torch.where(a > b, a, b))
    agree("stack", torch.stack([x, y]), torch.stack([a, b]))
    agree("flip", x.flip(0), a.flip(0))
    agree("sum", x.sum(-1), a.sum(-1))
    agree("nonzero", x.nonzero(), a.nonzero())
    agree("sort", x.sort(dim=0, stable=True).indices, a.sort(dim=0, stable=True).indices)
    if "bool" not in (one.dtype, other.dtype):
        agree("sum of both", x + y, a + b)
        agree("product with a number", x * 3, a * 3)
        agree("maximum", torch.maximum(x, y), torch.maximum(a, b))
        agree(
            "difference from a host scalar",
            torch.tensor(5, dtype=a.dtype) - y,
            torch.tensor(5, dtype=a.dtype) - b,
        )
    if one.layout != "expanded":
        for target, source in ((x, y), (a, b)):
            target.copy_(source)
            target[..., -1:].fill_(1)
            target[:1].zero_()
            target.masked_fill_(source > 3, 2)
        agree("writes through views", x, a)
        whole = torch.empty(0, dtype=a.dtype).set_(a.untyped_storage())
        agree(
            "the memory around the view",
            torch.empty(0, dtype=a.dtype, device="npu").set_(x.untyped_storage()),
            whole,
        )


@pytest.mark.ranks(1, backend=None)
def test_drawn_layouts_and_dtypes(ranks: World) -> None:
    @settings(max_examples=300)
    @given(one=RECIPES, other=RECIPES)
    def property_holds(one: Recipe, other: Recipe) -> None:
        other = Recipe(one.shape, other.dtype, other.layout, other.seed)
        try:
            ranks.run(check_pair, one, other)
        except RankFailure:
            if ranks.broken:
                ranks.restart()
            raise

    property_holds()


@on_ranks(1, backend=None)
def test_views_share_memory_with_their_base() -> None:
    base = torch.zeros(4, 6, device="npu")
    base.t()[1:3].add_(1)
    base.view(-1)[::5].mul_(10)
    base.unfold(1, 2, 2)[0, 0].fill_(7)
    base.diagonal().sub_(3)
    base.split(2)[1].clamp_(max=2)
    expected = torch.zeros(4, 6)
    expected.t()[1:3].add_(1)
    expected.view(-1)[::5].mul_(10)
    expected.unfold(1, 2, 2)[0, 0].fill_(7)
    expected.diagonal().sub_(3)
    expected.split(2)[1].clamp_(max=2)
    assert torch.equal(base.cpu(), expected)
    assert base.t().data_ptr() == base.data_ptr()
    assert base.view(torch.int32).dtype == torch.int32


@on_ranks(1, backend=None)
def test_out_resizes_refuses_and_keeps_strides() -> None:
    a, b = torch.arange(6.0, device="npu").reshape(2, 3), torch.ones(2, 3, device="npu")
    out = torch.empty(3, 2, device="npu").t()
    assert torch.add(a, b, out=out) is out and out.stride() == (1, 2)
    assert out.cpu().tolist() == [[1, 2, 3], [4, 5, 6]]
    small = torch.empty(0, device="npu")
    torch.mul(a, 2, out=small)
    assert small.cpu().tolist() == [[0, 2, 4], [6, 8, 10]]
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.div(a, 2, out=torch.empty(2, 3, dtype=torch.int64, device="npu"))
    values, indices = torch.empty(0, device="npu"), torch.empty(0, dtype=torch.int64, device="npu")
    torch.sort(a, descending=True, out=(values, indices))
    assert indices.tolist() == [[2, 1, 0], [2, 1, 0]] and values[1].tolist() == [5, 4, 3]


@on_ranks(1, backend=None)
def test_indexing_reads_and_writes() -> None:
    host = torch.arange(60.0).reshape(3, 4, 5)
    npu = host.npu()
    rows, columns = torch.tensor([2, 0, 2]), torch.tensor([1, 3, 1])
    for at in (
        (rows,),
        (slice(None), rows),
        (rows, columns),
        (0, slice(1, 3), None),
        (..., -1),
        (host > 30,),
        (rows[:, None], columns[None, :]),
    ):
        on_device = tuple(item.npu() if isinstance(item, torch.Tensor) else item for item in at)
        assert torch.equal(npu[on_device].cpu(), host[at])
        assert torch.equal(npu[at].cpu(), host[at]), "indices may stay on the host"
        changed, wanted = npu.clone(), host.clone()
        changed[on_device] = -1
        wanted[at] = -1
        assert torch.equal(changed.cpu(), wanted)
    changed, wanted = npu.clone(), host.clone()
    changed.index_put_((rows.npu(), columns.npu()), torch.ones(5, device="npu"), accumulate=True)
    wanted.index_put_((rows, columns), torch.ones(5), accumulate=True)
    assert torch.equal(changed.cpu(), wanted)
    with pytest.raises(IndexError):
        npu[5]


@on_ranks(1, backend=None)
def test_multi_tensor_and_fused_optimizers_agree() -> None:
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        for options in ({"foreach": True}, {"foreach": False}, {"fused": True}):
            trained = []
            for device in ("cpu", "npu"):
                torch.manual_seed(0)
                model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)).to(device)
                optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.1, **options)
                for _ in range(3):
                    optimizer.zero_grad()
                    model(torch.ones(4, 6, device=device)).square().sum().backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                trained.append([p.detach().cpu() for p in model.parameters()])
            for one, other in zip(*trained, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@on_ranks(1, backend=None)
def test_attention_forward_and_backward_agree() -> None:
    for options in ({}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}):
        heads = 2 if "enable_gqa" in options else 4
        grads = []
        for device in ("cpu", "npu"):
            torch.manual_seed(1)
            leaves = [torch.randn(2, n, 7, 8) for n in (4, heads, heads)]
            q, k, v = (leaf.to(device).requires_grad_() for leaf in leaves)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            out.square().sum().backward()
            grads.append([tensor.detach().cpu() for tensor in (out, q.grad, k.grad, v.grad)])
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@on_ranks(1, backend=None)
def test_attention_takes_the_memory_of_the_fused_kernel_that_a_card_runs() -> None:
    """Not the scores: they would grow with the square of the sequence, here 128 MiB a head and batch."""
    batch, heads, tokens, size = 1, 4, 4096, 32
    query, key, value = (
        torch.randn(batch, heads, tokens, size, device="npu", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert "NpuFusionAttention" in type(out.grad_fn).__name__
    mask = 2048 * 2048  # bytes, whatever the length of the sequence
    softmax = 2 * batch * heads * tokens * 8 * 4  # largest value and sum of each row, eightfold in fp32
    kept = torch.npu.memory_allocated() - before
    assert 0 <= kept - (out.nbytes + mask + softmax) <= 4 * 512, "each of the four tensors in whole blocks"
    out.sum().backward()
    assert torch.npu.max_memory_allocated() - before < 4 * (out.nbytes + mask + softmax)


@on_ranks(1, backend=None)
def test_devices_are_not_mixed_in_silence() -> None:
    npu = torch.ones(3, device="npu")
    assert (npu * torch.tensor(2.0)).tolist() == [2.0] * 3, "a host scalar is fine"
    with pytest.raises(RuntimeError, match="same device. Expected NPU tensor.*got one on cpu"):
        npu + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        npu + torch.ones(3, device="npu:1")
    with pytest.raises(RuntimeError):
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3, device="npu"))
    with pytest.raises(TypeError, match="npu"):
        npu.numpy()


@on_ranks(1, backend=None)
def test_work_on_one_npu_does_not_open_another() -> None:
    """On a card a context costs memory and time on an NPU that other processes use."""
    import torch_npu

    other = torch.ones(3, device="npu:1")
    for _ in (other.to(torch.float64), other.clone(), other.copy_(other + 1), str(other), other.cpu()):
        assert torch_npu._C._npu_hasPrimaryContext(1) and not torch_npu._C._npu_hasPrimaryContext(0)


@on_ranks(1, backend=None)
def test_copies_between_npus() -> None:
    first = torch.arange(1000.0, device="npu:0")
    second = first.to("npu:1")
    assert second.device == torch.device("npu:1") and torch.equal(second.cpu(), first.cpu())
    first.copy_(second.flip(0))
    assert first[0].item() == 999
    third = torch.empty(500, dtype=torch.int32, device="npu:2")
    third.copy_(first[::2])
    assert third[:2].tolist() == [999, 997]


@on_ranks(1, backend=None)
def test_an_operator_run_by_name_takes_tensors_without_elements() -> None:
    """They have no memory at all, which is not the same as an operand left out."""
    import torch_npu

    for shape in ((0,), (5, 0), (0, 5)):
        cast = torch_npu.npu_format_cast(torch.ones(shape, device="npu"), 3)
        torch.npu.synchronize()
        assert cast.shape == shape


@on_ranks(1, backend=None)
def test_an_operator_run_by_name_that_is_not_simulated_raises_and_names_itself() -> None:
    import torch_npu  # absent where there is no NPU

    boxes = torch.ones(4, 4, device="npu")
    with pytest.raises(RuntimeError, match="operator YoloBoxesEncode .* is not simulated by npu-plugins"):
        torch_npu.npu_yolo_boxes_encode(boxes, boxes, torch.ones(4, dtype=torch.int32, device="npu"), False)
        torch.npu.synchronize()


@on_ranks(1, backend=None)
def test_an_aclnn_function_that_is_not_simulated_raises_and_names_itself() -> None:
    import torch_npu

    half = torch.ones(4, 4, device="npu", dtype=torch.float16)
    with pytest.raises(RuntimeError, match="aclnnFFN"):
        torch_npu.npu_ffn(half, half, half, "relu")
        torch.npu.synchronize()


@on_ranks(1, backend=None)
def test_products_of_sparse_tensors_are_refused() -> None:
    sparse = torch.eye(3).to_sparse().npu()
    with pytest.raises(RuntimeError, match="not currently supported on the NPU"):
        torch.sparse.mm(sparse, torch.ones(3, 3, device="npu"))
