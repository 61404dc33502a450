"""From one kind of checkpoint to another and back: every bit of every weight."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from npu_plugins.checkpoint import CheckpointError, load_sharded
from npu_plugins.checkpoint.convert import convert
from npu_plugins.checkpoint.files import WINDOW_BYTES
from npu_plugins.checkpoint.sharded import INDEX, ShardedSource, file_name
from npu_plugins.checkpoint.sources import HuggingFaceSource
from npu_plugins.checkpoint.verify import verify
from tests.checkpoint.folders import content, shared_folder
from tests.checkpoint.test_memory import SIZES, reset_peak, resident_peak
from tests.checkpoint.test_round_trip import CONVERTED, write_checkpoint
from tests.harness.fixtures import on_ranks
from tests.tensor_parallel.models import CASES, PRELOAD, Case, make_model
from tests.tensor_parallel.test_sharding import make_mesh

# One of each way to divide a matrix: query, key and value apart, with ties; all merged and transposed.
WHOLE_WAY = [case for case in CASES if case.name.startswith(("llama tied", "gpt2 (merged"))]
DIVIDED = [case for case in CASES if case.name.startswith(("llama", "gemma", "phi3 (m", "gpt2 (", "olmo2"))]
LLAMA = Case("llama", "LlamaConfig", {"num_hidden_layers": 3})


def refused(message: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except CheckpointError as error:
        assert re.search(message, str(error)), str(error)
        assert "\n" not in str(error)
    else:
        raise AssertionError(f"not refused: {message}")


def same(before: Path, after: Path, case: str) -> None:
    """The two directories hold the same files, byte for byte."""
    one, other = content(before), content(after)
    assert one.keys() == other.keys(), case
    assert [name for name in one if one[name] != other[name]] == [], case


def round_trips(folder: Path, case: Case, dtype: torch.dtype) -> None:
    original = folder / "in"
    write_checkpoint(original, case, dtype)
    if case.config_class in CONVERTED:
        refused("in other pieces than", lambda: convert(original, folder / "s", "sharded", tp=2))
        return
    convert(original, folder / "s", "sharded", tp=2, pp=2)
    assert verify(folder / "s") == []
    convert(folder / "s", folder / "back", "hf")
    same(original, folder / "back", case.name)
    if case in WHOLE_WAY:
        other_ways(folder, original, case, dtype)


def other_ways(folder: Path, original: Path, case: Case, dtype: torch.dtype) -> None:
    """To another layout, and through a universal checkpoint."""
    convert(folder / "s", folder / "other", "sharded", tp=4)
    convert(folder / "other", folder / "again", "hf")
    same(original, folder / "again", case.name)
    convert(folder / "other", folder / "u", "universal")
    assert verify(folder / "u") == []
    name = str(dtype).removeprefix("torch.")
    convert(folder / "u", folder / "plain", "hf", dtype=name)
    assert json.loads((folder / "plain" / "config.json").read_text())["dtype"] == name
    weights = {
        key: value for file in original.glob("*.safetensors") for key, value in load_file(file).items()
    }
    again = load_file(folder / "plain" / "model.safetensors")
    assert weights.keys() == again.keys()
    for key, value in weights.items():
        assert torch.equal(again[key], value), (case.name, key)
        assert again[key].dtype == dtype


@on_ranks(1, backend="gloo", preload=PRELOAD, timeout=150)
def test_every_architecture_comes_back() -> None:
    import tempfile

    for number, case in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            round_trips(Path(folder), case, (torch.float32, torch.bfloat16, torch.float16)[number % 3])


def check_shards(mesh: Any, case: Case) -> None:
    """Each file holds what the rank of that place has when it loads the model."""
    folder = shared_folder(mesh)
    if mesh.global_rank == 0:
        make_model(case).save_pretrained(folder / "in")
        convert(folder / "in", folder / "s", "sharded", tp=2, pp=1)
    dist.barrier()
    model = load_sharded(folder / "in", mesh)
    places = ShardedSource(folder / "s").places
    own = load_file(folder / "s" / file_name(0, mesh.rank("tp")))
    first = load_file(folder / "s" / file_name(0, 0))
    for name, parameter in model.named_parameters():
        stored = own[name] if places[name].shard is not None else first[name]
        held = parameter.detach().cpu()
        held = held.t() if getattr(parameter, "stored_transposed", False) else held
        assert torch.equal(stored, held), (case.name, name)


@on_ranks(2, backend="gloo", preload=PRELOAD)
def test_the_files_of_ranks_are_what_ranks_load() -> None:
    mesh = make_mesh(2)
    for case in DIVIDED:
        check_shards(mesh, case)


def check_stages(folder: Path) -> None:
    """Stages are runs of layers in the model's order, about equally heavy."""
    make_model(LLAMA).save_pretrained(folder / "in")
    convert(folder / "in", folder / "s", "sharded", pp=3)
    places = ShardedSource(folder / "s").places
    stage = {name: place.stage for name, place in places.items()}
    assert stage["model.embed_tokens.weight"] == 0
    assert stage["lm_head.weight"] == stage["model.norm.weight"] == 2
    layers = [{stage[name] for name in stage if f"layers.{number}." in name} for number in range(3)]
    assert all(len(each) == 1 for each in layers), "a layer is on one stage"
    assert [min(each) for each in layers] == sorted(min(each) for each in layers)
    assert {place.stage for place in places.values()} == {0, 1, 2}
    refused(r"cannot be laid out for tp 1 × pp 9: 9 stages for 5 layers",
            lambda: convert(folder / "in", folder / "x", "sharded", pp=9))  # fmt: skip
    refused(r"cannot be laid out for tp 3 × pp 1: .*attention heads cannot be divided",
            lambda: convert(folder / "in", folder / "x", "sharded", tp=3))  # fmt: skip
    assert not (folder / "x").exists()


def check_dtypes(folder: Path) -> None:
    """A cast is one where it was asked for, and only of floating numbers."""
    make_model(LLAMA).save_pretrained(folder / "a")
    tensors = load_file(folder / "a" / "model.safetensors")
    convert(folder / "a", folder / "b", "hf", dtype="bfloat16")
    cast = load_file(folder / "b" / "model.safetensors")
    assert all(torch.equal(cast[name], tensors[name].bfloat16()) for name in tensors)
    assert json.loads((folder / "b" / "config.json").read_text())["dtype"] == "bfloat16"
    convert(folder / "a", folder / "c", "sharded", dtype="float16", tp=2)
    convert(folder / "c", folder / "d", "hf")
    assert torch.equal(load_file(folder / "d" / "model.safetensors")["model.norm.weight"],
                       tensors["model.norm.weight"].half())  # fmt: skip
    save_file({**tensors, "ids": torch.arange(3)}, folder / "a" / "model.safetensors", {"format": "pt"})
    refused("ids in .* is torch.int64, but universal checkpoints hold fp32",
            lambda: convert(folder / "a", folder / "e", "universal"))  # fmt: skip
    assert not (folder / "e").exists()


def check_refusals(folder: Path) -> None:
    source = folder / "in"
    make_model(LLAMA).save_pretrained(source)
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()
    (folder / "empty").mkdir()
    to = folder / "out"
    refused("is there already", lambda: convert(source, folder / "full", "sharded"))
    refused("is Hugging Face safetensors already", lambda: convert(source, to, "hf"))
    refused("cannot convert to 'onnx'", lambda: convert(source, to, "onnx"))
    refused("tp 2 × pp 1 is for sharded", lambda: convert(source, to, "universal", tp=2))
    refused("tp 0 × pp 1 is no layout", lambda: convert(source, to, "sharded", tp=0))
    refused("dtype 'int8' is unknown", lambda: convert(source, to, "hf", dtype="int8"))
    refused("leave --dtype out", lambda: convert(source, to, "universal", dtype="float32"))
    refused("is no checkpoint: it has neither .* but nothing", lambda: convert(folder / "empty", to, "hf"))
    refused("is no directory", lambda: convert(folder / "nowhere", to, "hf"))
    (source / "config.json").rename(folder / "config.json")
    (folder / "config.json").rename(folder / "kept.json")
    refused("has a config.json.*pass --config", lambda: convert(source, to, "sharded", tp=2))
    refused("has no config.json; give a directory", lambda: convert(source, to, "sharded", config=folder))
    other = Case("other", "LlamaConfig", {"intermediate_size": 64, "num_hidden_layers": 3})
    make_model(other).save_pretrained(folder / "other")
    refused("makes its dim 0 64 long|has shape .* but", lambda: convert(source, to, "sharded", tp=2,
                                                                        config=folder / "other"))  # fmt: skip
    (folder / "kept.json").rename(source / "config.json")
    convert(source, folder / "empty", "sharded", tp=2, config=folder / "other" / ".." / "in")
    index = json.loads((folder / "empty" / INDEX).read_text())
    index["hugging_face"]["weight_map"] = dict.fromkeys(index["tensors"], "../../stolen.safetensors")
    (folder / "empty" / INDEX).write_text(json.dumps(index))
    refused("leads out of it", lambda: convert(folder / "empty", to, "hf"))
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    refused("is no whole safetensors file", lambda: convert(source, to, "universal"))
    assert not to.exists()
    assert not list(folder.glob(".tmp-*"))


def check_memory(folder: Path) -> None:
    """No conversion holds more than a few tensors, however large the model is."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {**SIZES, "hidden_size": 512, "intermediate_size": 1536, "vocab_size": 2048}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder / "in", max_shard_size="1GB")
    make_model(LLAMA).save_pretrained(folder / "small")
    convert(folder / "small", folder / "small-s", "sharded", tp=2)  # what is imported is not the conversion's
    convert(folder / "small", folder / "small-u", "universal")
    nbytes = [info.nbytes for info in HuggingFaceSource(folder / "in").tensors.values()]
    for source, target, options in (
        ("in", "s", {"to": "sharded", "tp": 2, "pp": 2}),
        ("s", "back", {"to": "hf"}),
        ("in", "u", {"to": "universal"}),
        ("u", "again", {"to": "hf"}),
    ):
        reset_peak()
        before = resident_peak()
        convert(folder / source, folder / target, **options)
        peak = resident_peak() - before
        allowed = 4 * max(nbytes) + 2 * WINDOW_BYTES
        assert peak <= allowed, f"{source} to {target}: {peak / max(nbytes):.1f} tensors"
        assert peak <= 0.4 * sum(nbytes), f"{source} to {target}: {peak / sum(nbytes):.2f} of the model"


@on_ranks(1, backend="gloo", preload=PRELOAD, timeout=150)
def test_stages_dtypes_refusals_memory() -> None:
    import tempfile

    for check in (check_stages, check_dtypes, check_refusals, check_memory):
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))
