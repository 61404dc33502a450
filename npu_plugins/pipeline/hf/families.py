"""The decoders of transformers that can be split, and where their parts are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_plugins.pipeline.errors import PipelineError


@dataclass(frozen=True)
class Family:
    """The names of a decoder's parts, and what its forward pass does besides calling them in turn.

    Read from transformers 5.24, ``models/*/modeling_*.py``: the forward passes of these classes differ in
    nothing else.
    """

    base: str = "model"
    """The attribute that holds all but the head."""
    embedding: str = "embed_tokens"
    positions: str | None = None
    """The table of learned positions, added to the embedding."""
    dropout: str | None = None
    """Applied to that sum."""
    layers: str = "layers"
    norm: str = "norm"
    rotary: str | None = "rotary_emb"
    head: str = "lm_head"
    mask: str = "full"
    """full: all layers see the whole past; window: all see `config.sliding_window` tokens, if that is set;
    by-layer: each as `config.layer_types` says."""


FAMILIES = {
    "LlamaForCausalLM": Family(),
    "Qwen2ForCausalLM": Family(mask="by-layer"),
    "Qwen3ForCausalLM": Family(mask="by-layer"),
    "MistralForCausalLM": Family(mask="window"),
    "GemmaForCausalLM": Family(),  # its embedding scales by itself
    "Phi3ForCausalLM": Family(mask="window"),
    "GPT2LMHeadModel": Family(
        "transformer", "wte", positions="wpe", dropout="drop", layers="h", norm="ln_f", rotary=None
    ),
}


def family_of(model_class: Any, config: Any) -> Family:
    """Return the family of a model's class.

    Raises:
        PipelineError: it is none of those that can be split, or its configuration asks for what is more than
            a decoder.
    """
    name = model_class.__name__
    own = model_class.__module__.startswith("transformers.models.")
    if name not in FAMILIES or not own:
        origin = "" if own else f" of {model_class.__module__}"
        seq2seq = " (an encoder-decoder)" if getattr(config, "is_encoder_decoder", False) else ""
        raise PipelineError(
            f"{name}{origin}{seq2seq} cannot be split into stages; those that can are transformers' "
            f"{', '.join(FAMILIES)}: use one of these, or give PipelineModule the layers yourself"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise PipelineError(
            f"the configuration of {name} has a quantization_config, which stages cannot follow; give the "
            "model in full precision"
        )
    for key, allowed, what in (
        ("add_cross_attention", False, "attends to an encoder, which no stage has"),
        ("is_causal", True, "is no causal decoder"),
    ):
        if getattr(config, key, allowed) != allowed:
            raise PipelineError(
                f"{key} is {getattr(config, key)} in the configuration of {name}, which so {what}; a "
                f"pipeline takes {key} {allowed}"
            )
    return FAMILIES[name]
