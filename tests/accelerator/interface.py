"""One check for every member of DeepSpeed's accelerator interface; each runs on a rank and asserts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], None]
CHECKS: dict[str, Check] = {}


def covers(*members: str) -> Callable[[Check], Check]:
    """Register a check under the members it covers."""

    def register(check: Check) -> Check:
        CHECKS.update(dict.fromkeys(members, check))
        return check

    return register


@covers(
    "is_synchronized_device", "use_host_timers", "resolves_data_dependency", "handles_memory_backpressure"
)
def an_npu_is_asynchronous(a: Any) -> None:
    assert not a.is_synchronized_device()
    assert not a.use_host_timers()
    assert not a.resolves_data_dependency()
    assert not a.handles_memory_backpressure()


@covers(
    "device_name",
    "device",
    "set_device",
    "current_device",
    "current_device_name",
    "device_count",
    "is_available",
)
def devices(a: Any) -> None:
    import torch

    assert a.is_available()
    assert a.device_count() == torch.npu.device_count() >= 2
    assert (a.device_name(), a.device_name(1)) == ("npu", "npu:1")
    a.set_device(1)
    assert (a.current_device(), a.current_device_name()) == (1, "npu:1")
    assert torch.ones(1, device=a.device_name()).device == a.device(1) == torch.device("npu:1")
    a.set_device(0)


@covers("synchronize", "Stream", "stream", "current_stream", "default_stream", "Event")
def streams_and_events(a: Any) -> None:
    import torch

    assert a.current_stream() == a.current_stream(0) == a.default_stream() == a.default_stream(0)
    side = a.Stream()
    start, end = a.Event(enable_timing=True), a.Event(enable_timing=True)
    with a.stream(side):
        assert a.current_stream() == side
        start.record()
        x = torch.ones(1000, device="npu") + 1
        end.record()
    assert a.current_stream() == a.default_stream()
    a.current_stream().wait_event(end)
    a.synchronize()
    a.synchronize(0)
    assert end.query()
    assert start.elapsed_time(end) >= 0
    assert x.sum().item() == 2000


@covers("random", "set_rng_state", "get_rng_state", "manual_seed", "manual_seed_all", "initial_seed")
def random_numbers(a: Any) -> None:
    import torch

    assert a.random() is torch.random
    a.manual_seed(5)
    assert a.initial_seed() == 5
    state = a.get_rng_state()
    first = torch.rand(100, device="npu")
    a.set_rng_state(state)
    assert torch.equal(torch.rand(100, device="npu"), first)
    a.manual_seed_all(5)
    assert torch.equal(torch.rand(100, device="npu"), first)
    other = a.get_rng_state(1)
    torch.rand(100, device="npu:0")
    assert torch.equal(a.get_rng_state(1), other)
    a.set_rng_state(state, 1)
    assert torch.equal(torch.rand(100, device="npu:1"), first.to("npu:1"))


@covers("default_generator")
def generators(a: Any) -> None:
    import torch

    generator = a.default_generator(0)
    generator.manual_seed(9)
    first = torch.rand(10, device="npu:0")
    a.manual_seed(9)
    assert torch.equal(torch.rand(10, device="npu:0"), first)


@covers(
    "memory_allocated",
    "max_memory_allocated",
    "reset_max_memory_allocated",
    "memory_cached",
    "max_memory_cached",
    "reset_max_memory_cached",
    "memory_stats",
    "reset_peak_memory_stats",
    "memory_reserved",
    "max_memory_reserved",
    "empty_cache",
)
def memory_statistics(a: Any) -> None:
    import torch

    mebi = 2**20
    a.empty_cache()
    before = a.memory_allocated()
    x = torch.empty(64 * mebi, dtype=torch.uint8, device="npu")
    assert 64 * mebi <= a.memory_allocated() - before < 65 * mebi
    assert a.memory_allocated(0) == a.memory_allocated()
    assert a.memory_stats()["allocated_bytes.all.current"] == a.memory_allocated()
    del x
    assert a.memory_allocated() == before
    assert a.max_memory_allocated() >= before + 64 * mebi
    for reset in (a.reset_peak_memory_stats, a.reset_max_memory_allocated, a.reset_max_memory_cached):
        reset()
        reset(0)
    assert a.max_memory_allocated() == before
    assert a.memory_cached() == a.memory_reserved() >= 64 * mebi
    assert a.max_memory_cached() == a.max_memory_reserved() == a.memory_reserved(0)
    a.empty_cache()
    assert a.memory_reserved() < 64 * mebi


@covers("total_memory", "available_memory")
def memory_of_the_device(a: Any) -> None:
    import torch

    gibi = 2**30
    total = a.total_memory()
    assert total == a.total_memory(0) == torch.npu.mem_get_info(0)[1]
    before = a.available_memory()
    assert 0 < before <= total
    x = torch.empty(gibi, dtype=torch.uint8, device="npu")
    assert abs(before - a.available_memory() - gibi) < 2**22
    del x  # the cache keeps it, for this process to use
    assert abs(before - a.available_memory(0)) < 2**22
    a.empty_cache()


@covers("is_bf16_supported", "is_fp16_supported", "is_fp64_supported", "supported_dtypes")
def dtypes(a: Any) -> None:
    import torch

    assert a.is_fp16_supported()
    assert not a.is_fp64_supported()
    assert a.is_bf16_supported() == torch.npu.is_bf16_supported()
    assert {torch.float, torch.half} <= set(a.supported_dtypes()) <= {torch.float, torch.half, torch.bfloat16}
    assert (torch.bfloat16 in a.supported_dtypes()) == torch.npu.is_bf16_supported()


@covers("range_push", "range_pop", "supports_nvtx_domain")
def ranges(a: Any) -> None:
    assert a.supports_nvtx_domain
    for arguments in ({}, {"domain": "DeepSpeed"}, {"domain": "DeepSpeed", "category": "forward"}):
        a.range_push("step", **arguments)
        a.range_pop(arguments.get("domain"))


@covers("lazy_call")
def lazy_calls(a: Any) -> None:
    import torch

    called = []
    a.lazy_call(lambda: called.append(True))
    torch.npu.init()
    assert called == [True]


@covers("communication_backend_name", "is_triton_supported", "prefer_triton_grouped_mm")
def names(a: Any) -> None:
    assert a.communication_backend_name() == "hccl"
    assert not a.is_triton_supported()
    assert not a.prefer_triton_grouped_mm()


@covers("is_current_stream_capturing", "create_graph", "capture_to_graph", "replay_graph")
def graphs(a: Any) -> None:
    import torch

    assert not a.is_current_stream_capturing()
    graph = a.create_graph()
    assert isinstance(graph, torch.npu.NPUGraph)
    assert isinstance(a.capture_to_graph(graph), torch.npu.graph)
    replayed = []
    a.replay_graph(type("Recorded", (), {"replay": lambda self: replayed.append(self)})())
    assert len(replayed) == 1


@covers(
    "BFloat16Tensor",
    "ByteTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "on_accelerator",
)
def typed_tensors(a: Any) -> None:
    import torch

    kinds = {
        "BFloat16Tensor": torch.bfloat16,
        "ByteTensor": torch.uint8,
        "DoubleTensor": torch.float64,
        "FloatTensor": torch.float32,
        "HalfTensor": torch.float16,
        "IntTensor": torch.int32,
        "LongTensor": torch.int64,
    }
    for name, dtype in kinds.items():
        tensor = getattr(a, name)([1, 2])
        assert (tensor.dtype, tensor.tolist()) == (dtype, [1, 2])
        assert a.on_accelerator(tensor)
    assert not a.on_accelerator(torch.ones(1))


@covers(
    "pin_memory",
    "pin_empty",
    "pin_empty_like",
    "is_pinned",
    "unpin_memory",
    "pin_memory_alignment",
    "register_host_memory",
    "unregister_host_memory",
)
def pinned_memory(a: Any) -> None:
    import torch

    x = torch.arange(100.0)
    pinned = a.pin_memory(x)
    assert a.is_pinned(pinned) and not a.is_pinned(x)
    assert torch.equal(pinned.to("npu", non_blocking=True).cpu(), x)
    assert a.pin_memory(x, make_copy=False, match_shape=False).shape == (100,)
    assert a.is_pinned(a.pin_empty(3, 4, dtype=torch.half))
    assert a.pin_empty_like(x, dtype=torch.int32).dtype == torch.int32
    a.unpin_memory(pinned)
    size = a.pin_memory_alignment()
    assert size == 4096
    room = torch.empty(3 * size, dtype=torch.uint8)
    address = -(-room.data_ptr() // size) * size
    assert a.register_host_memory(address, size)
    a.unregister_host_memory(address)


@covers("op_builder_dir", "create_op_builder", "get_op_builder", "build_extension")
def op_builders(a: Any) -> None:
    from torch.utils.cpp_extension import BuildExtension

    assert a.op_builder_dir() == "npu_plugins.accelerator.op_builders"
    assert a.get_op_builder("FusedAdamBuilder").NAME == "fused_adam"
    assert a.create_op_builder("CPUAdamBuilder").NAME == "cpu_adam"
    assert a.create_op_builder("SparseAttnBuilder").is_compatible() is False
    assert a.build_extension() is BuildExtension


@covers("export_envs", "visible_devices_envs", "set_visible_devices_envs")
def variables(a: Any) -> None:
    environ: dict[str, str] = {}
    a.set_visible_devices_envs(environ, [1, 3])
    assert environ == {a.visible_devices_envs()[0]: "1,3"} == {"ASCEND_RT_VISIBLE_DEVICES": "1,3"}
    assert {"HCCL_", "TORCH", "DS_"} <= set(a.export_envs())


@covers("get_compile_backend", "set_compile_backend")
def compile_backends(a: Any) -> None:
    before = a.get_compile_backend()
    a.set_compile_backend("eager")
    assert a.get_compile_backend() == "eager"
    a.set_compile_backend(before)
    try:
        a.set_compile_backend("no such backend")
    except ValueError as error:
        assert "no such backend" in str(error)
    else:
        raise AssertionError("an unknown compile backend was accepted")
