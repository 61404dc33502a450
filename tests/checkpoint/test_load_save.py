"""Loading and saving: other spellings of names, ties, data-parallel ranks, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from npu_plugins.checkpoint import CheckpointError, load_sharded, save_hf
from npu_plugins.checkpoint.files import INDEX_FILE, SINGLE_FILE
from npu_plugins.tensor_parallel.shard import gather_full, shard_of
from tests.checkpoint.folders import content, shared_folder
from tests.harness.fixtures import on_ranks
from tests.tensor_parallel.models import PRELOAD, Case, batch, make_model
from tests.tensor_parallel.test_sharding import make_mesh

LLAMA = Case("llama", "LlamaConfig")
TIED = Case("llama", "LlamaConfig", {"tie_word_embeddings": True})
GPT2 = Case("gpt2", "GPT2Config")


def refused(message: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except CheckpointError as error:
        assert re.search(message, str(error)), str(error)
        assert "\n" not in str(error)
    else:
        raise AssertionError(f"not refused: {message}")


def prepare(mesh: Any, write: Callable[[Path], None]) -> Path:
    """A folder that one rank filled and all ranks see."""
    folder = shared_folder(mesh)
    if mesh.global_rank == 0:
        write(folder)
    dist.barrier()
    return folder


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / SINGLE_FILE)
    change(tensors)
    save_file(tensors, folder / SINGLE_FILE, {"format": "pt"})


def same_loss(model: Any, case: Case, mesh: Any) -> None:
    loss = model(**{key: value.to(mesh.device) for key, value in batch(0).items()}).loss.item()
    right = make_model(case).eval()(**batch(0)).loss.item()
    assert abs(loss - right) <= 1e-6 * right


def check_gpt2_as_on_the_hub(mesh: Any) -> None:
    """Its names lack `transformer.`, and it holds masks that the model no longer has."""

    def write(folder: Path) -> None:
        make_model(GPT2).save_pretrained(folder)
        tensors = load_file(folder / SINGLE_FILE)
        renamed = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        renamed["h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
        save_file(renamed, folder / SINGLE_FILE, {"format": "pt"})

    folder = prepare(mesh, write)
    model = load_sharded(folder, mesh)
    same_loss(model, GPT2, mesh)
    save_hf(model, mesh, folder / "out", source=folder)
    assert (folder / "out" / SINGLE_FILE).read_bytes() == (folder / SINGLE_FILE).read_bytes()


def check_a_tied_weight_stored_twice(mesh: Any) -> None:
    def write(folder: Path) -> None:
        make_model(TIED).save_pretrained(folder)
        change_weights(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))

    folder = prepare(mesh, write)
    model: Any = load_sharded(folder, mesh)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    save_hf(model, mesh, folder / "out", source=folder)
    assert (folder / "out" / SINGLE_FILE).read_bytes() == (folder / SINGLE_FILE).read_bytes()

    def differ(folder: Path) -> None:
        write(folder)
        change_weights(folder, lambda t: t["lm_head.weight"][5, 3].add_(1))

    folder = prepare(mesh, differ)
    refused(r"lm_head\.weight and model\.embed_tokens\.weight .* tied .* but .* differ",
            lambda: load_sharded(folder, mesh))  # fmt: skip


def check_dtype(mesh: Any) -> None:
    """Mixed dtypes are refused; asked for one, all weights are converted."""

    def write(folder: Path) -> None:
        make_model(LLAMA).save_pretrained(folder)
        change_weights(folder, lambda t: t.update({"model.norm.weight": t["model.norm.weight"].bfloat16()}))

    folder = prepare(mesh, write)
    refused(
        r"mixes dtypes \(.*model\.norm\.weight is bfloat16\).*pass dtype=", lambda: load_sharded(folder, mesh)
    )
    model: Any = load_sharded(folder, mesh, dtype=torch.bfloat16)
    weight = model.model.layers[0].mlp.down_proj.weight
    full = gather_full(weight, shard_of(weight), mesh.group("tp")).cpu()
    assert torch.equal(full, make_model(LLAMA).model.layers[0].mlp.down_proj.weight.bfloat16())
    refused(r"is torch\.bfloat16 of shape .* but the source has .* torch\.float32 .* convert the model first",
            lambda: save_hf(model, mesh, folder / "out", source=folder))  # fmt: skip
    save_hf(model, mesh, folder / "bf16")
    assert json.loads((folder / "bf16" / "config.json").read_text())["dtype"] == "bfloat16"


def check_names_and_shapes(mesh: Any) -> None:
    def write(folder: Path) -> None:
        for name in ("missing", "extra", "shape", "cut", "noconfig"):
            make_model(LLAMA).save_pretrained(folder / name)
        change_weights(folder / "missing", lambda t: [t.pop(key) for key in list(t) if "mlp.up" in key])
        change_weights(folder / "extra", lambda t: t.update({"other.weight": torch.zeros(2)}))
        change_weights(folder / "shape", lambda t: t.update({"model.norm.weight": torch.zeros(31)}))
        file = folder / "cut" / SINGLE_FILE
        file.write_bytes(file.read_bytes()[:-100])
        (folder / "noconfig" / "config.json").unlink()

    folder = prepare(mesh, write)
    for name, message in (
        (
            "missing",
            r"lacks model\.layers\.0\.mlp\.up_proj\.weight and 1 more of the \d+ tensors of LlamaForC",
        ),
        (
            "extra",
            r"holds other\.weight and 0 more tensors that LlamaForCausalLM has no place for; pass model_c",
        ),
        ("shape", r"model\.norm\.weight in .* has shape \[31\], but .* of LlamaForCausalLM has \[32\]"),
        ("cut", r"model\.safetensors \(\d+ bytes\) is no whole safetensors file"),
        ("noconfig", r"has no config\.json"),
    ):
        refused(message, lambda name=name: load_sharded(folder / name, mesh))


def check_saving(mesh: Any) -> None:
    folder = prepare(mesh, lambda folder: make_model(LLAMA).save_pretrained(folder))
    model: Any = load_sharded(folder, mesh)
    refused(r"directory and source are both", lambda: save_hf(model, mesh, folder, source=folder))
    refused(r"max_file_bytes is 0", lambda: save_hf(model, mesh, folder / "out", max_file_bytes=0))
    if mesh.global_rank == 0:
        (folder / "file").write_text("no folder")
    dist.barrier()
    message = (
        r"cannot be written" if mesh.rank("tp") == mesh.rank("dp") == 0 else r"could not be written by the"
    )
    refused(message, lambda: save_hf(model, mesh, folder / "file"))
    model.generation_config.temperature = 0.5  # transformers does not write it without do_sample
    refused(message, lambda: save_hf(model, mesh, folder / "generation"))
    model.model.norm.weight.data = torch.empty(0)  # as ZeRO-3 leaves a parameter
    model.model.norm.weight.ds_numel = 32
    refused(r"model\.norm\.weight is divided by ZeRO-3 .*GatheredParameters",
            lambda: save_hf(model, mesh, folder / "out"))  # fmt: skip


CHECKS = (
    check_gpt2_as_on_the_hub,
    check_a_tied_weight_stored_twice,
    check_dtype,
    check_names_and_shapes,
    check_saving,
)


@on_ranks(4, backend="gloo", timeout=120, preload=PRELOAD)
def test_two_replicas_of_two_ranks() -> None:
    mesh = make_mesh(2, dp=2)
    for check in CHECKS:
        check(mesh)


@on_ranks(1, backend="gloo", timeout=120, preload=PRELOAD)
def test_one_rank_reads_and_writes_the_whole_model() -> None:
    mesh = make_mesh(1)
    folder = prepare(
        mesh, lambda folder: make_model(GPT2).save_pretrained(folder / "in", max_shard_size=30_000)
    )
    model = load_sharded(folder / "in", mesh)
    same_loss(model, GPT2, mesh)
    save_hf(model, mesh, folder / "out", source=folder / "in")
    assert (folder / "in" / INDEX_FILE).exists()
    assert content(folder / "in") == content(folder / "out")
    shutil.rmtree(folder)
