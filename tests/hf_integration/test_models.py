"""Model sizes built from configurations, and what does not fit them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.errors import TrainingInputError
from hf_integration.models import (
    ModelPreset,
    build_model,
    longest_sequence,
    model_config,
    preset_names,
    presets,
    resolve_block_size,
)

MILLIONS = {"tiny": (0.3, 0.7), "10m": (9, 11), "100m": (80, 120), "1b": (800, 1200)}


@pytest.mark.parametrize("name", preset_names())
def test_preset_has_the_size_its_name_says(name: str) -> None:
    with torch.device("meta"):
        model = build_model(model_config(None, name, build_byte_tokenizer()), None)
    size = name.split("-")[0] if name.startswith("tiny") else name.split("-")[1]
    low, high = MILLIONS[size]
    assert low < sum(parameter.numel() for parameter in model.parameters()) / 1e6 < high
    assert model.config.model_type in name


@pytest.mark.parametrize("name", preset_names())
def test_embedding_fits_the_tokenizer_and_divides(name: str) -> None:
    tokenizer = build_byte_tokenizer()
    config = model_config(None, name, tokenizer)
    assert config.vocab_size == 264
    assert config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-gpt2"])
def test_model_starts_at_a_uniform_guess_and_reloads(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model(model_config(None, name, build_byte_tokenizer()), None).eval()
    ids = torch.randint(0, 256, (2, 32))
    with torch.no_grad():
        loss = model(input_ids=ids, labels=ids).loss
    assert abs(loss.item() - torch.tensor(264.0).log().item()) < 0.3
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        again = AutoModelForCausalLM.from_pretrained(tmp_path)(input_ids=ids, labels=ids).loss
    assert torch.equal(loss, again)


def test_inconsistent_preset_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden=10 is not divisible by heads=3"):
        ModelPreset("llama", 10, 1, 3, 3, 8, 16)
    with pytest.raises(ValueError, match="heads=4 is not divisible by kv_heads=3"):
        ModelPreset("llama", 16, 1, 4, 3, 8, 16)


def test_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    config = presets()["tiny-llama"].config(build_byte_tokenizer())
    config.vocab_size = 100
    config.save_pretrained(tmp_path)
    with pytest.raises(TrainingInputError, match="tokenizer has 257 tokens but the embedding of .* 100 rows"):
        model_config(str(tmp_path), None, build_byte_tokenizer())


def test_ids_count_and_not_the_tokens(tmp_path: Path) -> None:
    """A tokenizer with a gap asks for rows beyond its length."""
    vocabulary = {"a": 0, "b": 1, "<end>": 300}
    gap = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, [])), eos_token="<end>")
    assert len(gap) == 3
    assert presets()["tiny-llama"].config(gap).vocab_size == 304
    presets()["tiny-llama"].config(build_byte_tokenizer()).save_pretrained(tmp_path)
    with pytest.raises(TrainingInputError, match="tokenizer has 301 tokens but the embedding of .* 264 rows"):
        model_config(str(tmp_path), None, gap)


def test_broken_model_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "none-such"}', encoding="utf-8")
    with pytest.raises(TrainingInputError, match="cannot be loaded"):
        model_config(str(tmp_path), None, build_byte_tokenizer())
    presets()["tiny-llama"].config(build_byte_tokenizer()).save_pretrained(tmp_path)
    config = model_config(str(tmp_path), None, build_byte_tokenizer())
    with pytest.raises(TrainingInputError, match="cannot be loaded"):
        build_model(config, str(tmp_path))


def test_block_size_is_held_to_the_models_positions() -> None:
    config = presets()["tiny-llama"].config(build_byte_tokenizer())
    assert resolve_block_size(None, config) == 256
    assert resolve_block_size(1024, config) == 1024
    with pytest.raises(TrainingInputError, match="--block_size 1025 is longer than the 1024 positions"):
        resolve_block_size(1025, config)
    config.max_position_embeddings = 64
    assert resolve_block_size(None, config) == 64


def test_positions_that_stretch_with_the_sequence_set_no_limit() -> None:
    def limit(**rotary: object) -> int | None:
        return longest_sequence(LlamaConfig(max_position_embeddings=64, rope_parameters=rotary))

    assert limit(rope_type="default", rope_theta=1e4) == 64
    assert limit(rope_type="dynamic", rope_theta=1e4, factor=2.0) is None
