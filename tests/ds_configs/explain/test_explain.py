"""What a user of `ds-config explain` gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_configs.cli import main
from ds_configs.documents import parse_document
from ds_configs.errors import DsConfigError
from ds_configs.explain import Explanation, explain_document, explain_file, explain_key
from ds_configs.explain.lookup import OTHER_WORDS, all_keys
from ds_configs.explain.report import as_json, as_text
from ds_configs.schema import LATEST, VERSIONS, load_schema

TOP_LEVEL = load_schema().children(())


def file_with(tmp_path: Path, text: str) -> str:
    path = tmp_path / "ds_config.json"
    path.write_text(text, encoding="utf-8")
    return str(path)


def notes_of(explanations: list[Explanation]) -> dict[str, str]:
    return {one.key: " ".join(one.notes) for one in explanations}


@pytest.mark.parametrize(
    ("wanted", "key"),
    [
        ("zero_optimization.stage", "zero_optimization.stage"),
        ("zero_optimization/stage", "zero_optimization.stage"),
        ("reduce_bucket_size", "zero_optimization.reduce_bucket_size"),
        ("offload_optimizer.device", "zero_optimization.offload_optimizer.device"),
        ("lr", "optimizer.params.lr"),
        ("warmup_num_steps", "scheduler.params.warmup_num_steps"),
        ("train_batch_size", "train_batch_size"),
    ],
)
def test_a_key_is_found_by_path_or_by_its_end(wanted: str, key: str) -> None:
    assert explain_key(wanted).key == key


def test_a_name_of_several_keys_is_refused_with_them() -> None:
    with pytest.raises(
        DsConfigError, match="keys are called device: name one of zero_optimization.offload_opt"
    ):
        explain_key("device")


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("overlap_com", "zero_optimization.overlap_comm"),
        ("zero_optimization.stge", "zero_optimization.stage"),
        ("zero_optimisation", "zero_optimization"),
        ("gradient-clipping", "gradient_clipping"),
        ("train_micro_batch_size", "train_micro_batch_size_per_gpu"),
        ("learning_rate", "optimizer.params.lr"),
        ("per_device_train_batch_size", "train_micro_batch_size_per_gpu"),
        ("prefetch", "zero_optimization.stage3_prefetch_bucket_size"),
    ],
)
def test_a_slip_gets_the_likely_keys(slip: str, meant: str) -> None:
    with pytest.raises(DsConfigError, match=rf"DeepSpeed 0.19.8 has no key {slip}; did you mean .*{meant}"):
        explain_key(slip)


def test_a_word_like_no_sibling_gets_none_of_them() -> None:
    """That the block before it is right makes no key in it likely."""
    with pytest.raises(DsConfigError) as refused:
        explain_key("zero_optimization.foo")
    assert "zero_optimization.foo; `ds-config" in str(refused.value)


def test_odd_names_stand_in_quotes() -> None:
    with pytest.raises(DsConfigError, match='has no key ""; '):
        explain_key("")
    found = explain_document(parse_document('{"": 1, "fp16": {"a b": 2}}'), LATEST)
    assert as_text(found, 80).startswith('"" = 1   line 1\n')
    assert 'fp16."a b" = 2' in as_text(found, 80)


def test_words_of_other_programs_lead_to_keys_that_exist() -> None:
    words = json.loads(OTHER_WORDS.read_text(encoding="utf-8"))
    assert {key for key in words.values() if load_schema().key(tuple(key.split("."))) is None} == set()


def test_a_word_like_nothing_is_refused_too() -> None:
    with pytest.raises(DsConfigError, match="has no key xyzzyxyzzy"):
        explain_key("xyzzyxyzzy")


def test_defaults_are_of_the_version_asked_for() -> None:
    assert explain_key("gradient_clipping").default == "1.0"
    old = explain_key("gradient_clipping", "0.18")
    assert (old.version, old.default) == ("0.18.9", "0.0")
    assert old.history == "Other versions: default 1.0 in 0.19.8."


@pytest.mark.parametrize("name", ["pipeline.schedule", "virtual_stages"])
def test_a_key_of_npu_plugins_own_is_not_taken_for_a_slip(name: str) -> None:
    with pytest.raises(DsConfigError, match=f"has no key {name}: npu_plugins' pipeline engine reads it"):
        explain_key(name)


def test_a_block_for_npu_plugins_engine_is_explained_as_it_reads_it() -> None:
    text = '{"pipeline": {"schedule": "zb-v", "virtual_stages": 3, "recomputing": 1}}'
    notes = notes_of(explain_document(parse_document(text, "ds.json")))
    assert notes["pipeline.schedule"].startswith("npu_plugins' pipeline engine reads it")
    assert "refuses it: schedule zb-v has 2 stages on each rank, not 3" in notes["pipeline.virtual_stages"]
    assert "knows no such key" in notes["pipeline.recomputing"]


def test_a_key_of_another_version_says_which() -> None:
    with pytest.raises(
        DsConfigError, match="DeepSpeed 0.16.9 has no key expert_parallel.enabled; 0.19.8 have it"
    ):
        explain_key("expert_parallel.enabled", "0.16.9")


def test_a_removed_key_says_so() -> None:
    one = explain_key("amp")
    assert one.removed
    assert one.notes[0].startswith("Removed in DeepSpeed 0.19.8: the parser refuses it, even empty.")
    assert not explain_key("amp", "0.18").removed


def test_another_spelling_has_the_text_of_the_first() -> None:
    short, full = explain_key("prefetch_bucket_size"), explain_key("stage3_prefetch_bucket_size")
    assert short.does == full.does
    assert "Another spelling of zero_optimization.stage3_prefetch_bucket_size." in short.notes


def test_default_of_a_parameter_depends_on_the_type() -> None:
    assert explain_key("lr").default == "0.001 (Adam, AdamW, Lamb, Lion, SGD); 0.01 (Adagrad); 0.02 (Muon)"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_key_can_be_explained(version: str) -> None:
    for key in all_keys(load_schema(version)):
        assert explain_key(key.name, version).key == key.name


def test_a_file_is_explained_in_its_order_with_values(tmp_path: Path) -> None:
    path = file_with(
        tmp_path, '{"bf16": {"enabled": true},\n "train_batch_size": 8,\n "optimizer": {"type": "Lion"}}'
    )
    found = explain_file(path)
    assert [one.key for one in found] == [
        "bf16",
        "bf16.enabled",
        "train_batch_size",
        "optimizer",
        "optimizer.type",
    ]
    assert [one.line for one in found] == [1, 1, 2, 3, 3]
    assert found[2].value == 8


def test_a_file_says_what_is_ignored_refused_or_unknown(tmp_path: Path) -> None:
    document = {
        "zero_optimisation": {"stage": 3},
        "amp": {"enabled": True},
        "gradient_clipping": "1.0",
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": "2e8",
            "offload_param": {"device": "cpu"},
            "overlap_comm": "auto",
            "no_such_key": 1,
        },
        "pipeline": {"stages": 2},
    }
    said = notes_of(explain_file(file_with(tmp_path, json.dumps(document))))
    assert "ignores it without a word. Like it: zero_optimization" in said["zero_optimisation"]
    assert "zero_optimisation.stage" not in said
    assert said["amp"].startswith("Removed")
    assert said["gradient_clipping"] == 'The parser takes "1.0", but the key is meant to hold float.'
    assert said["zero_optimization.stage"] == ""
    assert said["zero_optimization.reduce_bucket_size"] == 'Refused: it must be a whole number, not "2e8".'
    assert said["zero_optimization.offload_param"].startswith("Ignored: the file has stage 2.")
    assert said["zero_optimization.offload_param.device"].startswith("Ignored: the file has stage 2.")
    assert "Hugging Face's Trainer" in said["zero_optimization.overlap_comm"]
    assert "knows no such key and refuses it" in said["zero_optimization.no_such_key"]
    assert said["pipeline"] == "Ignored unless the model is a PipelineModule."


def test_a_condition_that_the_file_meets_is_not_repeated(tmp_path: Path) -> None:
    path = file_with(tmp_path, '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}')
    assert notes_of(explain_file(path))["zero_optimization.offload_param"] == ""


def test_a_key_that_needs_another_says_so_where_it_is_missing(tmp_path: Path) -> None:
    with_type = notes_of(
        explain_file(file_with(tmp_path, '{"optimizer": {"type": "Adam", "params": {"lr": 1}}}'))
    )
    assert with_type["optimizer.params"] == with_type["optimizer.params.lr"] == ""
    without = notes_of(explain_file(file_with(tmp_path, '{"optimizer": {"params": {"lr": 1}}}')))
    assert without["optimizer.params"] == "Ignored unless type stands beside it."
    assert without["optimizer.params.lr"] == "Ignored unless type stands beside optimizer.params."


def test_parameters_are_judged_by_the_files_type(tmp_path: Path) -> None:
    document = {
        "optimizer": {"type": "adamw", "params": {"lr": 1, "momentum": 0.9}},
        "scheduler": {"type": "X", "params": {"y": 1}},
    }
    found = {one.key: one for one in explain_file(file_with(tmp_path, json.dumps(document)))}
    assert found["optimizer.params.lr"].default == "0.001"
    assert found["optimizer.params.momentum"].notes[0] == (
        "AdamW has no such parameter: it fails when the engine is built. SGD and Muon have it."
    )
    assert found["scheduler.params.y"].notes == (
        "DeepSpeed hands it on as it is to the class that scheduler.type names.",
    )


def test_muon_ignores_what_it_does_not_know(tmp_path: Path) -> None:
    text = '{"optimizer": {"type": "Muon", "params": {"nesterov": true}}}'
    assert notes_of(explain_file(file_with(tmp_path, text)))["optimizer.params.nesterov"].startswith(
        "Muon has no such parameter: it is ignored without a word. SGD has it. Muon takes lr, momentum"
    )


def test_a_file_with_comments_is_read_as_deepspeed_reads_it(tmp_path: Path) -> None:
    assert [
        one.key for one in explain_file(file_with(tmp_path, '{\n// small\n"train_batch_size": 8,\n}'))
    ] == ["train_batch_size"]


@pytest.mark.parametrize("text", ["", "[1]", "model: x", "\x00\x01"])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DsConfigError, match="ds_config.json holds no JSON object to explain"):
        explain_file(file_with(tmp_path, text))


def test_text_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "zero_optimization.reduce_bucket_size"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("zero_optimization.reduce_bucket_size   [int above 0; default: 500000000 (5e8)]\n")
    for part in (
        "Unit: elements.",
        "Memory:",
        "Communication:",
        "When to change it:",
        "On Ascend:",
        f"DeepSpeed {LATEST}",
    ):
        assert part in " ".join(out.split())


def test_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "fp16.enabled", "--format", "json", "--deepspeed-version", "0.17"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["key"], one["version"], one["default"]) == ("fp16.enabled", "0.17.6", "false")
    assert "value" not in one
    assert main(["explain", file_with(tmp_path, '{"train_batch_size": 8}'), "--format", "json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["value"], one["line"]) == (8, 1)


def test_a_key_with_slashes_is_a_key_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "zero_optimization/stage"]) == 0
    assert capsys.readouterr().out.startswith("zero_optimization.stage ")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('{"fp16": {"enabled": True}}', "line 1: True is Python, not JSON"),
        ('{"fp16": {},\n "fp16": {}}', 'line 2: "fp16" stands here for the second time'),
        ("{fp16: {} // why\n}", ""),
    ],
)
def test_what_deepspeed_does_not_read_is_said(
    tmp_path: Path, text: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", file_with(tmp_path, text)]) == 0
    assert note in capsys.readouterr().err if note else capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "argv", [["nonsense"], ["no/such/file.json"], ["stage", "--deepspeed-version", "9.9"]]
)
def test_what_cannot_be_done_is_refused_in_a_sentence(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *argv]) == 2
    assert capsys.readouterr().err.startswith("ds-config: ")


names = st.sampled_from(
    [key.path[-1] for key in all_keys(load_schema())] + ["", "no_such_key", "strict", "0"]
)
documents = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["auto", "cpu", "8", "Adam"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=100)
@given(value=st.dictionaries(st.one_of(names, st.sampled_from(sorted(TOP_LEVEL))), documents, max_size=5))
def test_any_document_is_explained_key_by_key(value: dict[str, object]) -> None:
    found = explain_document(parse_document(json.dumps(value)), LATEST)
    assert [one.key for one in found if "." not in one.key] == [name for name in value if "." not in name]
    assert all(one.does or one.notes for one in found)
    assert as_text(found, 80).count("\n\n") == max(0, len(found) - 1)
    json.loads(as_json(found))
