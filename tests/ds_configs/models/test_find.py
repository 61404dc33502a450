"""Models by name: published totals, and names that this project's trainer knows."""

from __future__ import annotations

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.models import find_model
from ds_configs.named_models import named_models

# As the checkpoints on the Hub count them (safetensors headers), or their papers give them.
TOTALS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "bloom-176b": 176_247_271_424,
}


@pytest.mark.parametrize("name", TOTALS)
def test_published_models_have_their_published_size(name: str) -> None:
    assert find_model(name).parameters() == TOTALS[name]


@pytest.mark.parametrize("name", named_models())
def test_the_trainers_names_are_known(name: str) -> None:
    assert find_model(name).hidden == named_models()[name].hidden


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DsConfigError, match="nothing is downloaded.*--params"):
        find_model("somebody/some-model")
