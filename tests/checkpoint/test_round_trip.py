"""A Hugging Face directory, loaded onto ranks and saved again, is the same directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from npu_plugins.checkpoint import CheckpointError, load_sharded, save_hf
from npu_plugins.tensor_parallel.sharding import shard_model
from tests.checkpoint.folders import content, shared_folder
from tests.harness.fixtures import on_ranks
from tests.tensor_parallel.models import CASES, PRELOAD, batch, make_model
from tests.tensor_parallel.test_sharding import make_mesh

# transformers stores experts one by one and stacks them when it loads them.
CONVERTED = ("MixtralConfig", "Qwen3MoeConfig")


def check_converted(case: Any, mesh: Any) -> None:
    import torch.distributed as dist

    folder = shared_folder(mesh)
    if mesh.global_rank == 0:
        make_model(case).save_pretrained(folder)
    dist.barrier()
    model = shard_model(make_model(case).to(mesh.device), mesh)
    for call in (lambda: load_sharded(folder, mesh), lambda: save_hf(model, mesh, folder / "out")):
        with pytest.raises(CheckpointError, match=r"ForCausalLM \(.*\) in other pieces .* call shard_model"):
            call()


def write_checkpoint(directory: Path, case: Any, dtype: torch.dtype) -> Any:
    """Save the whole model as transformers does, in several files, with files of a tokenizer."""
    model = make_model(case, dtype)
    model.save_pretrained(directory, max_shard_size=20_000)
    (directory / "tokenizer.json").write_text('{"any": "thing"}   ')
    (directory / "special_tokens_map.json").write_text("{}")
    return model


def round_trips(tp: int, dtype: torch.dtype) -> None:
    """Every architecture: loss as the whole model's, files as they were, byte for byte."""
    import torch.distributed as dist

    mesh = make_mesh(tp)
    for case in CASES:
        if case.config_class in CONVERTED:
            check_converted(case, mesh)
            continue
        folder = shared_folder(mesh)
        whole = make_model(case, dtype).eval()
        if mesh.global_rank == 0:
            write_checkpoint(folder / "in", case, dtype)
        dist.barrier()
        model = load_sharded(folder / "in", mesh)
        assert all(p.dtype == dtype and p.device == mesh.device for p in model.parameters()), case.name
        save_hf(model, mesh, folder / "out", source=folder / "in")
        save_hf(model, mesh, folder / "plain", max_file_bytes=20_000)
        before, after = content(folder / "in"), content(folder / "out")
        assert len([name for name in before if name.endswith(".safetensors")]) > 1
        assert before.keys() == after.keys(), case.name
        assert [name for name in before if before[name] != after[name]] == [], case.name
        check_plain(folder / "plain", whole, case.name)
        inputs = {key: value.to(mesh.device) for key, value in batch(0).items()}
        loss, right = model(**inputs).loss.item(), whole(**batch(0)).loss.item()
        assert abs(loss - right) <= (1e-6 if dtype == torch.float32 else 1e-2) * abs(right), case.name


def check_plain(directory: Path, whole: Any, name: str) -> None:
    """transformers itself loads what was written without a source, and finds every bit of the whole model."""
    from transformers import AutoModelForCausalLM

    again = AutoModelForCausalLM.from_pretrained(directory)
    assert type(again) is type(whole)
    expected = dict(whole.named_parameters())
    found = dict(again.named_parameters())
    assert found.keys() == expected.keys(), name
    for key, value in expected.items():
        assert found[key].dtype == value.dtype
        assert torch.equal(found[key], value), (name, key)


@on_ranks(2, timeout=120, preload=PRELOAD)
def test_every_architecture_on_2_npus() -> None:
    round_trips(2, torch.float32)


@on_ranks(4, backend="gloo", timeout=120, preload=PRELOAD)
def test_every_architecture_on_4_ranks_in_bf16() -> None:
    round_trips(4, torch.bfloat16)
