"""What ranks run in test_hf_directories.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.checkpoint.folders import content, shared_folder
from tests.checkpoint.test_memory import SIZES, reset_peak, resident_peak
from tests.pipeline.models import Case, layers, loss_fn
from tests.pipeline.three_axes_cases import from_first, make_engine, start, train
from tests.pipeline.three_axes_models import CONFIGS, Run, train_plain

BYTES = 20_000
"""Of a file: small, so that a model has several and one file has tensors of several stages."""


def write(folder: Path, run: Run, mesh: Any, dtype: torch.dtype = torch.float32) -> None:
    """Save the whole model as transformers does, with files of a tokenizer."""
    if mesh.global_rank == 0:
        run.whole().to(dtype).save_pretrained(folder, max_shard_size=BYTES)
        (folder / "tokenizer.json").write_text('{"any": "thing"}   ')
        (folder / "merges.txt").write_text("a b\n")
    dist.barrier()


def check_plain(folder: Path, expected: dict[str, torch.Tensor], bound: float = 0.0) -> None:
    """transformers itself loads what was written without a source."""
    from transformers import AutoModelForCausalLM

    found = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        away = (found[name].float() - value.float()).norm() / value.float().norm()
        assert torch.equal(found[name], value) or away <= bound, (name, away)


def round_trips(backend: str) -> None:
    """Every family: what is loaded into tp 2 × pp 2 and saved again is the same directory, byte for byte."""
    from npu_plugins.checkpoint import save_hf
    from npu_plugins.pipeline import split_model

    mesh = start(backend, 2, 2)
    for index, family in enumerate(CONFIGS):
        # zb-v has the first and the last stage on one rank; the others have a copy of tied weights on each.
        run = Run(family, tied=index % 3 < 2, schedule=("1f1b", "zb-v")[index % 2])
        dtype = (torch.float32, torch.bfloat16)[index % 2]
        folder = shared_folder(mesh)
        write(folder / "in", run, mesh, dtype)
        module = split_model(folder / "in", mesh=mesh, schedule=run.schedule)
        assert {each.dtype for each in module.parameters()} == {dtype}, "the directory's"
        save_hf(module, mesh, folder / "out", source=folder / "in")
        save_hf(module, mesh, folder / "plain", max_file_bytes=BYTES)
        before, after = content(folder / "in"), content(folder / "out")
        assert len([name for name in before if name.endswith(".safetensors")]) > 1
        assert before.keys() == after.keys(), family
        assert [name for name in before if before[name] != after[name]] == [], family
        assert len([name for name in content(folder / "plain") if name.endswith(".safetensors")]) > 1
        if mesh.global_rank == 0:
            check_plain(folder / "plain", dict(run.whole().to(dtype).named_parameters()))
        dist.barrier()


def trained_then_saved(backend: str) -> None:
    """Trained from a directory and saved: transformers finds the parameters of one process's training."""
    from npu_plugins.checkpoint import save_hf

    mesh = start(backend, 2, 2)
    for run in (Run("Llama", schedule="zb-v", steps=2), Run("GPT2", steps=2)):
        wanted = from_first(mesh, lambda run=run: train_plain(run, mesh.size("dp")))
        folder = shared_folder(mesh)
        write(folder / "in", run, mesh)
        engine = make_engine(run, mesh, folder / "in")
        for step in range(run.steps):
            loss = engine.train_batch(run.batches(step, mesh.rank("dp"))).item()
            assert abs(loss - wanted.losses[step]) <= 1e-5 * loss
        save_hf(engine.module, mesh, folder / "out", source=folder / "in")
        save_hf(engine.module, mesh, folder / "plain")
        assert content(folder / "in")["config.json"] == content(folder / "out")["config.json"]
        if mesh.global_rank == 0:
            for name in ("out", "plain"):
                check_plain(folder / name, wanted.parameters, 1e-5)
        dist.barrier()
        engine.destroy()


def every_source_is_the_same_model(backend: str) -> None:
    """A model, its configuration under its seed, and its directory train alike, to the bit."""
    mesh = start(backend, 2, 2)
    run = Run("GPT2", steps=2)
    folder = shared_folder(mesh)
    write(folder, run, mesh)
    losses = []
    for make in (run.whole, run.config, lambda: folder):
        model = make()
        torch.manual_seed(3)  # of the configuration's weights
        losses.append(train(run, mesh, model).losses)
    assert losses[0] == losses[1] == losses[2]


def refusals(backend: str) -> None:
    """What would make parts of different models, or cannot be saved, is refused on every rank."""
    from npu_plugins.checkpoint import CheckpointError, save_hf
    from npu_plugins.pipeline import split_model
    from npu_plugins.pipeline.errors import PipelineError
    from npu_plugins.pipeline.module import PipelineModule

    mesh = start(backend, 2, 2)
    run = Run("Llama")
    torch.manual_seed(mesh.global_rank == 2)
    with pytest.raises(
        PipelineError, match=r"torch's random generator is not .* on rank 2 as on rank 0, .*seed"
    ):
        split_model(run.config(), mesh=mesh)
    model = run.whole()
    with torch.no_grad():
        model.model.norm.weight[0] += float(mesh.global_rank == 1)
    with pytest.raises(PipelineError, match=r"model\.norm\.weight is not the same on rank 1 as on rank 0"):
        split_model(model, mesh=mesh)
    module = PipelineModule(layers(Case()), loss_fn=loss_fn, mesh=mesh)
    with pytest.raises(CheckpointError, match="give it what split_model made"):
        save_hf(module, mesh, "nowhere")
    folder = shared_folder(mesh)
    write(folder, run, mesh)
    with pytest.raises(CheckpointError, match="directory and source are both"):
        save_hf(split_model(folder, mesh=mesh), mesh, folder, source=folder)
    module = split_model(folder, mesh=mesh, dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match="bfloat16 .* the source has .*float32"):
        save_hf(module, mesh, folder / "out", source=folder)
    (folder / "file").touch()
    with pytest.raises(CheckpointError, match="written"):  # on rank 0 why, on the others that it was not
        save_hf(module, mesh, folder / "file" / "below")


def damaged_directories(backend: str) -> None:
    """Tied weights stored twice, another model's shapes, and what goes wrong on one rank alone."""
    from npu_plugins.checkpoint import CheckpointError
    from npu_plugins.pipeline import split_model
    from npu_plugins.pipeline.errors import PipelineError
    from npu_plugins.pipeline.hf.agreement import failing_together

    mesh = start(backend, 2, 2)
    folder = shared_folder(mesh)
    write(folder, Run("Llama", tied=False), mesh)
    config = json.loads((folder / "config.json").read_text())

    def with_config(**changes: Any) -> Path:
        dist.barrier()
        if mesh.global_rank == 0:
            (folder / "config.json").write_text(json.dumps({**config, **changes}))
        dist.barrier()
        return folder

    with pytest.raises(CheckpointError, match="they differ; set tie_word_embeddings to false"):
        split_model(with_config(tie_word_embeddings=True), mesh=mesh)
    with pytest.raises(CheckpointError, match=r"has shape \[48, 32\], but .* has \[64, 32\]; is config.json"):
        split_model(with_config(intermediate_size=64), mesh=mesh)
    module = split_model(with_config(), mesh=mesh)
    expected, words = (
        (OSError, "^no such disk$")
        if mesh.global_rank == 3
        else (PipelineError, "rank 3 failed at reading: OSError: no such disk")
    )
    with pytest.raises(expected, match=words), failing_together("reading", module.control):
        if mesh.global_rank == 3:
            raise OSError("no such disk")


def memory() -> float:
    """Return how much host memory a rank takes to load its part, in units of that."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from npu_plugins.pipeline import split_model

    mesh = start("gloo", 2, 2)
    folder = shared_folder(mesh)
    small = LlamaConfig(**{**SIZES, "hidden_size": 64})
    if mesh.global_rank == 0:
        LlamaForCausalLM(small).save_pretrained(folder / "small")
        LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder / "large")
    dist.barrier()
    split_model(folder / "small", mesh=mesh)  # imports and caches are not the checkpoint's
    reset_peak()
    before = resident_peak()
    module = split_model(folder / "large", mesh=mesh)
    share = sum(each.nbytes for each in module.parameters())
    whole = sum(each.stat().st_size for each in (folder / "large").glob("*.safetensors"))
    assert 0.2 < share / whole < 0.3
    return (resident_peak() - before) / share
