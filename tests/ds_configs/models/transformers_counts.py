"""Parameter counts of models that transformers builds without their memory: a question to the oracle."""

from __future__ import annotations

from typing import Any

# Sizes small enough to build at once, spelt in every family's way; a family takes the keys that it has.
SMALL: dict[str, Any] = {
    "hidden_size": 96, "n_embd": 96, "d_model": 96, "num_hidden_layers": 3, "n_layer": 3, "n_layers": 3,
    "num_layers": 3, "num_attention_heads": 6, "n_head": 6, "n_heads": 6, "num_heads": 6,
    "intermediate_size": 160, "ffn_dim": 160, "n_inner": 160, "vocab_size": 320, "n_positions": 64,
    "max_position_embeddings": 64, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
    "num_experts_per_tok": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
PER_FAMILY: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global"], 3]]},
    "opt": {"word_embed_proj_dim": 96},
    "deepseek_v2": {**LATENT, "first_k_dense_replace": 1},
    "deepseek_v3": {**LATENT, "first_k_dense_replace": 1},
}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def small_config(family: str, changes: dict[str, Any]) -> Any:
    """The family's configuration with small sizes."""
    from transformers import AutoConfig

    default = AutoConfig.for_model(family)
    known = default.to_dict()
    names = set(known) | set(default.attribute_map)
    sizes = {key: value for key, value in SMALL.items() if key in names}
    if known.get("num_key_value_heads", 1) != 1:
        sizes["num_key_value_heads"] = 2
    if "head_dim" in known and not family.startswith("deepseek"):
        sizes["head_dim"] = 16
    return AutoConfig.for_model(family, **{**sizes, **PER_FAMILY.get(family, {}), **changes})


def default_config(family: str) -> Any:
    """The class's own configuration, of two layers."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(family).to_dict()
    few: dict[str, Any] = {next(key for key in LAYERS if key in known): 2}
    if family == "gpt_neo":
        few["attention_types"] = [[["global"], 2]]
    return AutoConfig.for_model(family, **few)


def parameter_counts(cases: list[list[Any]]) -> list[int]:
    """Answer each case [family, changes to its small configuration or null for the class's own, directory or
    null] with the number of trained parameters; the directory then holds what save_pretrained writes."""
    import torch
    from transformers import AutoModelForCausalLM

    counts = []
    for family, changes, directory in cases:
        config = default_config(family) if changes is None else small_config(family, changes)
        if directory:
            config.save_pretrained(directory)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    return counts
