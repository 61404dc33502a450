"""Every key has its sentences, and they can be traced to DeepSpeed's source."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from ds_configs.explain import KeyText, load_texts, text_of
from ds_configs.explain.lookup import all_keys
from ds_configs.schema import VERSIONS, load_schema


def test_every_key_of_every_version_has_a_text() -> None:
    without = {
        key.name for version in VERSIONS for key in all_keys(load_schema(version)) if text_of(key) is None
    }
    assert without == set()


def test_there_is_no_text_for_a_key_that_no_version_has() -> None:
    known = {key.name for version in VERSIONS for key in all_keys(load_schema(version))}
    assert set(load_texts()) - known == set()


def test_sources_are_in_the_installed_deepspeed() -> None:
    spec = find_spec("deepspeed")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    wrong = []
    for name, text in load_texts().items():
        file, _, word = (text.source or "").partition(": ")
        if file and not (package / file).is_file():
            wrong.append(f"{name}: there is no {file}")
        elif file and word not in (package / file).read_text(encoding="utf-8"):
            wrong.append(f"{name}: {file} does not mention {word}")
    assert wrong == []


def test_what_deepspeed_never_reads_is_said_to_do_nothing_and_nothing_else_is() -> None:
    schema = load_schema()
    unread = {key.name for key in schema.keys.values() if not key.consumed}
    assert {name for name, text in load_texts().items() if text.does.startswith("Nothing:")} == unread


def test_removed_keys_say_what_to_do_instead() -> None:
    for key in load_schema().keys.values():
        if key.removed and not key.alias_of:
            text = text_of(key)
            assert text is not None and len(text.change) > len("Remove"), key.name


@pytest.mark.parametrize("field", ["does", "change", "ascend"])
def test_sentences_end_as_sentences(field: str) -> None:
    wrong = [
        name for name, text in load_texts().items() if (said := getattr(text, field)) and said[-1] not in ".)"
    ]
    assert wrong == []


def test_whole_numbers_have_a_unit() -> None:
    plain = {"data_efficiency.seed", "autotuning.model_info.hidden_size"}
    without = {
        key.name
        for key in all_keys(load_schema())
        if key.types in (("int",), ("int", "null")) and not key.choices and not (text_of(key) or _none()).unit
    }
    assert without == plain


def _none() -> KeyText:
    return KeyText("-", "-", None)


@pytest.mark.parametrize(
    ("key", "figure", "elements", "mebibytes"),
    [
        ("zero_optimization.reduce_bucket_size", "954 MiB at 5e8 in bf16", 5e8, 954),
        ("zero_optimization.stage3_prefetch_bucket_size", "95 MiB at 5e7 in bf16", 5e7, 95),
        ("zero_optimization.stage3_max_live_parameters", "1.9 GiB at 1e9 in bf16", 1e9, 1.9 * 1024),
    ],
)
def test_figures_in_the_texts(key: str, figure: str, elements: float, mebibytes: float) -> None:
    assert figure in load_texts()[key].memory
    assert 2 * elements / 2**20 == pytest.approx(mebibytes, rel=0.025)


def test_bytes_a_parameter_of_each_stage() -> None:
    """ZeRO (Rajbhandari 2020, section 5): 2 + 2 + 12 bytes, divided as the stage says."""
    assert (
        "16 at stage 0, 4 + 12/N at 1, 2 + 14/N at 2, 16/N at 3"
        in load_texts()["zero_optimization.stage"].memory
    )
    assert 2 + 2 + 12 == 16 and 2 + 2 == 4 and 2 + 12 == 14


def test_a_text_without_its_two_answers_is_refused() -> None:
    with pytest.raises(ValueError, match="what the key does and when to change it"):
        KeyText("It does something.", "", None)
