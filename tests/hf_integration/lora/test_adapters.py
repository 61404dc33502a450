"""From peft's models to the adapters of a divided one: what is taken, what is drawn, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from transformers import set_seed

from hf_integration.errors import TrainingInputError
from hf_integration.lora.adapters import take_apart, wrap
from hf_integration.lora.saving import merged_state
from tests.hf_integration.divided import make_model
from tests.hf_integration.lora.adapting import lora

SEED = 42


def real(family: str, **settings: Any) -> PeftModel:
    """Return peft's own model."""
    model = make_model(family)
    set_seed(SEED)
    return get_peft_model(model, lora(family, **settings))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_adapters_and_model_are_those_of_peft(family: str) -> None:
    base, found = take_apart(real(family))
    plain = make_model(family)
    assert {n: type(m) for n, m in base.named_modules()} == {n: type(m) for n, m in plain.named_modules()}
    assert all(torch.equal(a, b) for a, b in zip(base.parameters(), plain.parameters(), strict=True))
    model = real(family)
    for name, adapter in found.adapters.items():
        layer = model.get_base_model().get_submodule(name)
        assert torch.equal(adapter.down, layer.lora_A["default"].weight)
        assert torch.equal(adapter.up, layer.lora_B["default"].weight)
        assert adapter.scaling == layer.scaling["default"]
    count = sum(name.endswith("lora_A.default.weight") for name, _ in model.named_parameters())
    assert len(found.adapters) == count > 0
    trained = [n for n, p in model.named_parameters() if p.requires_grad and ".lora_" not in n]
    assert len(found.trained) == len(trained)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("init", [True, "gaussian", False])
def test_a_model_on_the_meta_device_gets_the_adapters_that_it_would_have_with_weights(
    init: Any, dtype: torch.dtype
) -> None:
    config = lora("llama", init_lora_weights=init)
    with torch.device("meta"):
        empty = make_model("llama").to(dtype)
    wanted = take_apart(wrap(make_model("llama").to(dtype), config, SEED))[1].adapters
    found = take_apart(wrap(empty, lora("llama", init_lora_weights=init), SEED))[1].adapters
    assert list(found) == list(wanted)
    for name, adapter in found.items():
        assert torch.equal(adapter.down, wanted[name].down) and torch.equal(adapter.up, wanted[name].up)
        assert adapter.down.dtype == wanted[name].down.dtype == torch.float32


def two_adapters() -> PeftModel:
    """Return a model with another adapter besides."""
    model = real("llama")
    model.add_adapter("other", lora("llama"))
    return model


def changed(change: Callable[[Any], Any]) -> PeftModel:
    """Return a model to which something was done."""
    model = real("llama")
    change(model)
    return model


def unfreeze_norm(model: PeftModel) -> None:
    """Train what no adapter file holds."""
    model.get_base_model().model.norm.requires_grad_(True)


REFUSED: dict[str, tuple[Callable[[], PeftModel], str]] = {
    "another method": (
        lambda: get_peft_model(make_model("llama"), IA3Config(task_type="CAUSAL_LM")),
        "peft_config is a IA3Config, but with tensor or pipeline parallelism LoRA is",
    ),
    "DoRA": (lambda: real("llama", use_dora=True), "use_dora is True in the LoraConfig"),
    "modules_to_save": (
        lambda: real("llama", target_modules=["q_proj"], modules_to_save=["norm"]),
        r"modules_to_save is \['norm'\]",
    ),
    "initial values from the weights": (
        lambda: real("llama", init_lora_weights="pissa"),
        "init_lora_weights is 'pissa' in the LoraConfig, which looks at the whole base weights",
    ),
    "an embedding": (
        lambda: real("llama", target_modules=["embed_tokens"]),
        "target_modules names model.embed_tokens, a Embedding; .* for linear layers",
    ),
    "a tied output layer": (
        lambda: real("qwen2", target_modules=["lm_head"], bias="none"),
        "target_modules names lm_head, whose weight is the embedding's as well",
    ),
    "two adapters": (two_adapters, "the model has adapters default, other, but"),
    "merged": (lambda: changed(lambda m: m.merge_adapter()), "q_proj is merged .*unmerge_adapter first"),
    "disabled": (
        lambda: changed(lambda m: m.base_model.disable_adapter_layers()),
        "q_proj is disabled, .*enable_adapter_layers first",
    ),
    "frozen": (
        lambda: changed(lambda m: m.requires_grad_(False)),
        r"q_proj.lora_A.default.weight does not require gradients, .*is_trainable=True",
    ),
    "more than adapters": (
        lambda: changed(unfreeze_norm),
        "model.norm.weight is trained beside the adapters",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(TrainingInputError, match=message):
        take_apart(make())


def test_a_configuration_that_peft_refuses() -> None:
    with pytest.raises(TrainingInputError, match="peft refuses peft_config: Target modules .*query"):
        wrap(make_model("llama"), LoraConfig(target_modules=["query"]), SEED)


def test_adapters_given_twice() -> None:
    with pytest.raises(TrainingInputError, match="model is a PeftModel, .* but peft_config asks for others"):
        wrap(real("llama"), lora("llama"), SEED)


def test_of_two_adapters_none_is_merged() -> None:
    model = two_adapters()
    with pytest.raises(TrainingInputError, match="q_proj has adapters default, other, but one is merged"):
        merged_state(model, model.state_dict())
