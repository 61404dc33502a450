"""What ranks run in test_split_model.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npu_plugins.pipeline.errors import PipelineError, StageError
from tests.pipeline.hf_models import (
    VOCABULARY,
    Split,
    build_whole,
    configuration,
    freeze,
    make_optimizer,
    train_whole,
)
from tests.pipeline.models import Record
from tests.pipeline.running import use_cpu


def make_engine(case: Split, backend: str, stages: int, model: Any = None, **options: Any) -> Any:
    """Build the pipeline of a case on this rank."""
    if backend == "gloo":
        use_cpu()
    import deepspeed

    import npu_plugins
    from npu_plugins.pipeline import split_model

    deepspeed.init_distributed(backend)
    config = case.ds_config(torch.distributed.get_world_size() // stages)
    torch.manual_seed(1)
    module = split_model(model or case.configuration(), stages, config=config, **options)
    engine, *_ = npu_plugins.initialize(
        model=module, optimizer=make_optimizer(module.parameters()), config=config
    )
    return engine


def train(case: Split, backend: str, stages: int) -> Record:
    """Train, and return what this rank saw and holds, under the names of transformers."""
    model = None
    if case.frozen:
        model = build_whole(case)
        freeze(model)
    engine = make_engine(case, backend, stages, model)
    from npu_plugins.pipeline import hf_names
    from npu_plugins.pipeline.gradients import gradient_of

    names = hf_names(engine.module)
    assert set(names) == {name for name, _ in engine.module.named_parameters()}
    assert len(set(names.values())) == len(names)
    record = Record([], [], {}, {})
    step = engine._exec_optimizer_step

    def recording() -> None:
        if not record.gradients:
            for local, name in names.items():
                parameter = engine.module.get_parameter(local)
                if parameter.requires_grad:
                    gradient = gradient_of(engine, parameter).detach().cpu()
                    record.gradients[name] = gradient.reshape(parameter.shape).clone()
        step()

    engine._exec_optimizer_step = recording
    dp = engine.mesh.size("dp")
    for number in range(case.steps):
        loss = engine.train_batch(case.batches(number, dp, engine.mesh.rank("dp")))
        record.losses.append(loss.item())
        norm = engine.get_global_grad_norm()
        record.norms.append(None if norm is None else float(norm))
    for local, name in names.items():
        record.parameters[name] = engine.module.get_parameter(local).detach().float().cpu().clone()
    engine.destroy()
    return record


def train_all(cases: list[Split], backend: str, stages: int) -> list[tuple[Record, Record | None]]:
    """Train one case after the other; the ranks share the work of training the whole models as well."""
    found = []
    for number, case in enumerate(cases):
        record = train(case, backend, stages)
        device = "cpu" if backend == "gloo" else torch.device("npu", torch.npu.current_device())
        world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        mine = number % world == rank
        found.append((record, train_whole(case, world // stages, device) if mine else None))
    return found


def evaluate(backend: str, schedule: str) -> None:
    """Losses and logits of an evaluation are the whole model's; labels are wanted only for a loss."""
    case = Split("qwen3", tied=True, schedule=schedule, batch="padded")
    engine = make_engine(case, backend, 2)
    whole = build_whole(case).eval()
    batches = list(case.batches(7))
    with torch.no_grad():
        wanted = [whole(**batch, use_cache=False) for batch in batches]
    losses = [output.loss.item() for output in wanted]
    loss, logits = engine.eval_batch(iter(batches), return_logits=True)
    assert abs(loss.item() - sum(losses) / 4) < 1e-6 * losses[0]
    assert (logits is not None) == engine.is_last_stage()
    for found, output in zip(logits or [], wanted, strict=logits is not None):
        torch.testing.assert_close(found.cpu(), output.logits, rtol=1e-5, atol=1e-6)
    pair = (batches[0]["input_ids"], batches[0]["labels"])
    with torch.no_grad():
        output = whole(input_ids=pair[0], labels=pair[1], use_cache=False)
    loss = engine.eval_batch(iter([pair]), num_micro_batches=1)
    assert abs(loss.item() - output.loss.item()) < 1e-6 * losses[0]
    unlabelled = {key: each for key, each in batches[0].items() if key != "labels"}
    _, logits = engine.eval_batch(
        iter([unlabelled]), return_logits=True, compute_loss=False, num_micro_batches=1
    )
    if logits is not None:
        torch.testing.assert_close(logits.cpu(), wanted[0].logits, rtol=1e-5, atol=1e-6)
    with pytest.raises(StageError, match="has no labels; add them"):
        engine.eval_batch(iter([unlabelled]), num_micro_batches=1)
    with pytest.raises(StageError, match="has no labels; add them"):
        engine.train_batch(iter([unlabelled] * 4))
    typed = {**batches[0], "token_type_ids": batches[0]["input_ids"]}
    with pytest.raises(StageError, match="a batch has token_type_ids; a split Qwen3ForCausalLM takes"):
        engine.train_batch(iter([typed] * 4))
    engine.destroy()


def dropout(backend: str) -> None:
    """Recomputation repeats GPT-2's dropout exactly: training with it and without is the same to the bit."""
    records = []
    for recomputation in ("none", "full"):
        changes = tuple((name, 0.2) for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop"))
        records.append(
            train(Split("gpt2", changes=changes, recomputation=recomputation, steps=2), backend, 2)
        )
    assert records[0].losses == records[1].losses
    assert train(Split("gpt2", steps=2), backend, 2).losses != records[0].losses


def checkpointed_model(backend: str) -> None:
    """A model whose own checkpointing is on is recomputed layer by layer, and its layers do not do it too."""
    case = Split("llama")
    model = build_whole(case)
    model.activation_checkpointing_enable()
    engine = make_engine(case, backend, 2, model)
    module = engine.module
    assert module.activation_checkpoint_interval == 1
    assert not any(getattr(each, "gradient_checkpointing", False) for each in module.modules())
    record = train_whole(case) if engine.mesh.rank("pp") == 0 else None
    losses = [engine.train_batch(case.batches(step)).item() for step in range(case.steps)]
    if record is not None:
        assert max(abs(a - b) / b for a, b in zip(losses, record.losses, strict=True)) < 1e-6
    engine.destroy()


def rotary_stays_exact(backend: str) -> None:
    """DeepSpeed casts a module's buffers to bf16 with its parameters; rotary frequencies must not be."""
    case = Split("llama", precision="bf16", tied=True)
    engine = make_engine(case, backend, 2)
    assert next(engine.module.parameters()).dtype == torch.bfloat16
    for preparation in engine.module.preparations.values():
        assert preparation.rotary.inv_freq.dtype == torch.float32
    engine.destroy()


def refusals(backend: str) -> None:
    """What cannot be split is refused with what can be done."""
    if backend == "gloo":
        use_cpu()
    import deepspeed
    import transformers

    from npu_plugins.pipeline import split_model

    deepspeed.init_distributed(backend)

    class OwnLlama(transformers.LlamaForCausalLM):
        """Could have any forward pass."""

    def refused(words: str, model: Any, stages: int = 2, **options: Any) -> None:
        with pytest.raises(PipelineError, match=words):
            split_model(model, stages, **options)

    llama = configuration("llama")
    supported = "LlamaForCausalLM, Qwen2ForCausalLM, .*GPT2LMHeadModel"
    refused(f"BertLMHeadModel cannot be split.*{supported}", transformers.BertConfig())
    refused("is of no causal language model", transformers.T5Config())
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=9)
    )
    refused(r"T5ForConditionalGeneration \(an encoder-decoder\) cannot be split", t5)
    refused("OwnLlama of tests.pipeline.split_cases cannot be split", OwnLlama(llama))
    refused("add_cross_attention is True", configuration("gpt2", add_cross_attention=True))
    refused("quantization_config", configuration("llama", quantization_config={"bits": 4}))
    refused("model is a int", 7)
    refused("flash_attention_2'.*choose sdpa or eager", llama, attn_implementation="flash_attention_2")
    refused("seed_layers is true", llama, config={"pipeline": {"seed_layers": True}})
    refused(
        r"8 stages for 5 layers \(TokenEmbedding, 2 × DecoderLayer, FinalNorm, Head\)",
        configuration("llama", layers=2),
        schedule="interleaved",
        virtual_stages=4,
    )
    model = transformers.LlamaForCausalLM(llama)
    model.lm_head = torch.nn.Linear(32, VOCABULARY, bias=True)
    refused("parameter lm_head.bias of LlamaForCausalLM is of shape .*configuration makes absent", model)
    model = transformers.LlamaForCausalLM(llama)
    model.model.layers[1].register_forward_hook(lambda *_: None)
    refused("module model.layers.1 has forward hooks", model)


def measured_cut(backend: str) -> None:
    """Partition time runs each layer once with some weights, and leaves none behind."""
    if backend == "gloo":
        use_cpu()
    import deepspeed

    from npu_plugins.pipeline import split_model

    deepspeed.init_distributed(backend)
    for family in ("gpt2", "qwen2"):
        config = configuration(family, tied=True)
        module = split_model(
            config, 2, partition_method="time", sample_input={"input_ids": torch.ones(2, 8, dtype=torch.long)}
        )
        assert module.parts[0] == 0 and module.parts[-1] == len(module._layer_specs)
        own = {id(parameter) for parameter in module.parameters()}
        for parameter in module.hf_model.parameters():
            assert (parameter.device.type == "meta") == (id(parameter) not in own)
