"""Counts of parameters against the model that transformers really builds, and against published numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.models import ModelShape
from ds_configs.models.hf_config import load_families, shape_of_config
from tests.ds_configs.oracle import Oracle

# Switches that change what a family holds.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    ("llama", {"head_dim": 40}),
    ("qwen3", {"num_key_value_heads": 3, "head_dim": 24, "attention_bias": True}),
    ("gpt_bigcode", {"multi_query": False}),
    ("opt", {"word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    ("opt", {"enable_bias": False, "layer_norm_elementwise_affine": False}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    ("phi", {"qk_layernorm": True, "num_key_value_heads": 2}),
    ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True}),
    ("cohere", {"use_qk_norm": True, "num_key_value_heads": 2}),
    ("qwen2_moe", {"mlp_only_layers": [1], "qkv_bias": False}),
    ("qwen3_moe", {"decoder_sparse_step": 2}),
    ("glm4_moe", {"use_qk_norm": True, "attention_bias": True}),
    ("deepseek_v2", {"q_lora_rank": None, "attention_bias": True}),
    ("gpt_neox", {"attention_bias": False, "tie_word_embeddings": True}),
]


CASES: list[tuple[str, dict[str, Any]]] = [(family, {}) for family in sorted(load_families())] + VARIANTS


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, oracle: Oracle) -> dict[str, tuple[int, Path]]:
    """What transformers counts, and where it saved the configuration, by the case's text."""
    root = tmp_path_factory.mktemp("configs")
    cases: list[tuple[str, dict[str, Any] | None, str | None]] = [
        (family, changes, str(root / str(index))) for index, (family, changes) in enumerate(CASES)
    ]
    cases += [(family, None, None) for family in sorted(load_families())]
    counts = oracle.ask("parameter_counts", cases=cases)
    return {
        f"{case[0]} {case[1]}": (count, Path(case[2] or ""))
        for case, count in zip(cases, counts, strict=True)
    }


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_count_is_that_of_the_model_transformers_builds(
    family: str, changes: dict[str, Any], built: dict[str, tuple[int, Path]]
) -> None:
    """Through the file that save_pretrained writes, which leaves out what equals the class's default."""
    count, directory = built[f"{family} {changes}"]
    assert ModelShape.from_hf_config(directory).parameters() == count


@pytest.mark.parametrize("family", sorted(load_families()))
def test_what_a_file_leaves_out_is_the_default_of_transformers(
    family: str, built: dict[str, tuple[int, Path]]
) -> None:
    """A file with nothing but its model_type and two layers, against the configuration class."""
    rule = load_families()[family]["layers"]
    shape = shape_of_config({"model_type": family, rule[0]: 2}, family)
    assert shape.parameters() == built[f"{family} None"][0]


# Totals as their publishers or the checkpoints' headers give them.
@pytest.mark.parametrize(
    ("config", "total"),
    [
        ({"model_type": "llama"}, 6_738_415_616),  # Llama-2-7B: the class's defaults
        ({"model_type": "mixtral"}, 46_702_792_704),  # Mixtral-8x7B-v0.1
        ({"model_type": "gpt2"}, 124_439_808),  # gpt2
        ({"model_type": "llama", "vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8},
         8_030_261_248),  # Llama-3-8B
        ({"model_type": "deepseek_v3"}, 671_026_404_352),  # DeepSeek-V3 without its MTP module
        ({"model_type": "mistral"}, 7_241_732_096),  # Mistral-7B-v0.1
    ],
)  # fmt: skip
def test_well_known_models(config: dict, total: int) -> None:
    assert shape_of_config(config, "known").parameters() == total


def test_active_parameters_of_mixtral() -> None:
    """12.9 B of 46.7 B (Jiang et al. 2024, arXiv 2401.04088 §2)."""
    shape = shape_of_config({"model_type": "mixtral"}, "mixtral")
    assert round(shape.active_parameters() / 1e9, 1) == 12.9


def test_a_composite_model_is_sized_from_its_text_part_and_says_so() -> None:
    text = {"model_type": "qwen2", "num_hidden_layers": 2}
    shape = shape_of_config({"model_type": "llava", "text_config": text}, "llava")
    assert shape.parameters() == shape_of_config(text, "qwen2").parameters()
    assert "text_config" in shape.notes[0]


def test_an_unknown_family_with_the_usual_fields_is_taken_with_a_warning() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = shape_of_config({"model_type": "novelty", **sizes, "vocab_size": 100}, "novelty")
    assert shape.layers == 2
    assert "'novelty' is not known" in shape.notes[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"model_type": "novelty", "hidden_size": 64}', "'novelty' is not known.*lacks intermediate_size"),
        ('{"model_type": "t5", "is_encoder_decoder": true}', "t5 has an encoder"),
        ('{"model_type": "llama", "hidden_size": "64"}', "hidden_size of .* is '64'"),
        ('{"model_type": "llama", "num_attention_heads": 6, "num_key_value_heads": 4}', "6 attention heads"),
        ("[1]", "holds list, not a JSON object"),
        ("{", "cannot be read"),
    ],
)  # fmt: skip
def test_what_is_no_decoder_is_refused_in_one_sentence(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(DsConfigError, match=reason):
        ModelShape.from_hf_config(path)


def test_a_directory_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DsConfigError, match="does not exist"):
        ModelShape.from_hf_config(tmp_path)


def test_layers_embedding_and_head_add_up(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "deepseek_v3"}))
    shape = ModelShape.from_hf_config(path)
    parts = [shape.layer_parameters(layer) for layer in range(shape.layers)]
    assert sum(parts) + shape.embedding_parameters() + shape.head_parameters() == shape.parameters()
    assert parts[0] < parts[3] == shape.layer_parameters()


def test_more_layers_than_can_be_counted_are_refused() -> None:
    with pytest.raises(DsConfigError, match="layers is 1000000000000; give at most 100000"):
        shape_of_config({"model_type": "llama", "num_hidden_layers": 10**12}, "m")
