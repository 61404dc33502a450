"""What ranks run in test_split_weights.py."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.checkpoint.test_memory import reset_peak, resident_peak
from tests.pipeline.hf_models import FAMILIES, configuration
from tests.pipeline.running import use_cpu

# Wider than 16 and no multiple of it: torch draws such tensors with a special end.
WIDTH = {"hidden_size": 40}


def start(backend: str) -> Any:
    """Return a mesh whose ranks are all stages."""
    if backend == "gloo":
        use_cpu()
    import deepspeed

    from ds_configs.parallel import ParallelConfig
    from npu_plugins.comm import ProcessMesh

    deepspeed.init_distributed(backend)
    return ProcessMesh.create(ParallelConfig(pp=dist.get_world_size()))


def same(module: Any, whole: Any) -> None:
    """Assert that a rank's parameters are the whole model's, bit for bit."""
    from npu_plugins.pipeline import hf_names

    names = hf_names(module)
    assert len(names) == len(list(module.parameters())) > 0
    for local, name in names.items():
        assert torch.equal(module.get_parameter(local).detach().cpu(), whole.get_parameter(name)), name


def drawn(backend: str, dtype_name: str, families: Sequence[str] = FAMILIES) -> None:
    """From a configuration, and from a model on the meta device; drawn in pieces of 32 numbers."""
    mesh = start(backend)
    from transformers import AutoModelForCausalLM

    from npu_plugins.pipeline import split_model
    from npu_plugins.pipeline.hf import draw

    dtype = getattr(torch, dtype_name)
    for number, family in enumerate(families):
        config = configuration(family, layers=5, tied=number % 2 == 0, **WIDTH)
        torch.manual_seed(3)
        whole = AutoModelForCausalLM.from_config(config, dtype=dtype)
        after = torch.get_rng_state()
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config, dtype=dtype)
        for model, schedule in ((config, "1f1b"), (empty, "zb-v")):
            torch.manual_seed(3)
            with mock.patch.object(draw, "PIECE", 32):
                module = split_model(model, mesh=mesh, schedule=schedule, dtype=dtype)
            same(module, whole)
            assert torch.equal(torch.get_rng_state(), after), "what is drawn next is the same, too"


def taken_and_read(backend: str, directory: str) -> None:
    """Of a model with weights, which are taken without a copy, and of what it saved."""
    mesh = start(backend)
    from transformers import AutoModelForCausalLM

    from npu_plugins.pipeline import hf_names, split_model

    for number, family in enumerate(FAMILIES):
        folder = Path(directory, family)
        torch.manual_seed(5)
        whole = AutoModelForCausalLM.from_config(configuration(family, tied=number % 2 == 0))
        if mesh.global_rank == 0:
            whole.save_pretrained(folder)
        dist.barrier()
        module = split_model(whole, mesh=mesh, schedule="zb-v")
        same(module, whole)
        if backend == "gloo":
            for local, name in hf_names(module).items():
                assert module.get_parameter(local).data_ptr() == whole.get_parameter(name).data_ptr()
        torch.manual_seed(6)
        same(split_model(folder, mesh=mesh), whole)
        same(split_model(str(folder), mesh=mesh, dtype=torch.bfloat16), whole.to(torch.bfloat16))


def reads_its_own(backend: str, directory: str) -> None:
    """From a directory nothing of another stage is read, and a tied weight by both ends."""
    mesh = start(backend)
    from transformers import AutoModelForCausalLM

    from npu_plugins.checkpoint.files import CheckpointFiles
    from npu_plugins.pipeline import hf_names, split_model

    if mesh.global_rank == 0:
        AutoModelForCausalLM.from_config(configuration("gpt2", tied=True)).save_pretrained(directory)
    dist.barrier()
    read = CheckpointFiles.read
    seen = []

    def reading(self: Any, name: str, *args: Any, **kwargs: Any) -> None:
        seen.append(name)
        read(self, name, *args, **kwargs)

    with mock.patch.object(CheckpointFiles, "read", reading):
        module = split_model(directory, mesh=mesh)
    assert sorted(seen) == sorted(hf_names(module).values())
    assert ("transformer.wpe.weight" in seen) == (mesh.rank("pp") == 0)
    assert "transformer.wte.weight" in seen


def memory(backend: str, directory: str, source: str) -> None:
    """Neither the files nor the other stage's weights become resident."""
    mesh = start(backend)
    from transformers import LlamaConfig, LlamaForCausalLM

    from npu_plugins.pipeline import split_model

    sizes = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4096}
    small = LlamaConfig(**sizes, hidden_size=64, intermediate_size=64, num_hidden_layers=2)
    large = LlamaConfig(**sizes, hidden_size=1024, intermediate_size=3072, num_hidden_layers=6)
    model: Any = large
    if source == "directory":
        model = Path(directory)
        if mesh.global_rank == 0:
            LlamaForCausalLM(large).save_pretrained(model)
        dist.barrier()
    torch.manual_seed(0)
    split_model(small, mesh=mesh)  # imports and caches are not the model's
    gc.collect()
    reset_peak()
    before = resident_peak()
    module = split_model(model, mesh=mesh)
    peak = resident_peak() - before
    share = sum(parameter.nbytes for parameter in module.parameters())
    whole = sum(parameter.nbytes for parameter in module.hf_model.parameters())
    assert 0.4 < share / whole < 0.6
    assert peak <= 1.2 * share, f"{peak / share:.3f} of the share"
    dist.barrier()
