"""Almost-JSON is read as what was meant, each fault in its place, and both loaders' verdicts are theirs."""

from __future__ import annotations

import json
from typing import Any

import hjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.documents import apply_edits, parse_document

# text, what is meant, kinds of faults
SAMPLES: dict[str, tuple[str, Any, set[str]]] = {
    "strict JSON": ('{"a": {"b": [1, 2e8, "x"]}}', {"a": {"b": [1, 2e8, "x"]}}, set()),
    "line comments": ('{"a": 1, // one\n"b": 2 # two\n}', {"a": 1, "b": 2}, {"comment"}),
    "block comment": ('/* top */ {"a": /* in */ 1}', {"a": 1}, {"comment"}),
    "comment at the end": ('{"a": 1} // end', {"a": 1}, {"comment"}),
    "a slash in a string is no comment": ('{"a": "http://b#c"}', {"a": "http://b#c"}, set()),
    "trailing commas": ('{"a": [1, 2,],}', {"a": [1, 2]}, {"trailing_comma"}),
    "two commas": ('{"a": 1,, "b": 2}', {"a": 1, "b": 2}, {"extra_comma"}),
    "comma first": ('{, "a": 1}', {"a": 1}, {"extra_comma"}),
    "no comma": ('{"a": 1\n"b": 2}', {"a": 1, "b": 2}, {"missing_comma"}),
    "no colon": ('{"a" 1}', {"a": 1}, {"missing_colon"}),
    "no value": ('{"a": , "b": 1}', {"a": None, "b": 1}, {"missing_value"}),
    "key alone": ('{"a"}', {"a": None}, {"missing_value"}),
    "single quotes": ("{'a': 'x \"y\"'}", {"a": 'x "y"'}, {"quotes"}),
    "triple quotes": ('{"a": """x"""}', {"a": "x"}, {"quotes"}),
    "typographic quotes": ("{“a”: 1}", {"a": 1}, {"quotes"}),
    "full-width punctuation": ('{"a"：1，"b": 2}', {"a": 1, "b": 2}, {"punctuation"}),
    "equals sign": ('{"a" = 1; "b" => 2}', {"a": 1, "b": 2}, {"punctuation"}),
    "keys without quotes": ("{a: 1, b_c: 2}", {"a": 1, "b_c": 2}, {"unquoted_key"}),
    "value without quotes": ('{"a": auto, "b": 1}', {"a": "auto", "b": 1}, {"unquoted_value"}),
    "value without quotes at the line's end": ('{"a": auto\n}', {"a": "auto"}, {"unquoted_value"}),
    "Python's dictionary": ("{'a': True, 'b': None}", {"a": True, "b": None}, {"quotes", "python_literal"}),
    "a tuple": ('{"a": (0.9, 0.99)}', {"a": [0.9, 0.99]}, {"bracket"}),
    "placeholder of a shell": ('{"a": ${x}, "b": 1}', {"a": "${x}", "b": 1}, {"placeholder"}),
    "placeholder of jinja": ('{"a": {{ x }}\n}', {"a": "{{ x }}"}, {"placeholder"}),
    "placeholder for people": ('{"a": <number>\n}', {"a": "<number>"}, {"placeholder"}),
    "NaN": ('{"a": NaN}', {"a": None}, {"not_a_number"}),
    "-Infinity": ('{"a": -Infinity}', {"a": None}, {"not_a_number"}),
    "odd numbers": (
        '{"a": 1_000, "b": .5, "c": 5., "d": 007, "e": +3, "f": 0x10}',
        {"a": 1000, "b": 0.5, "c": 5, "d": 7, "e": 3, "f": 16},
        {"number_form"},
    ),
    "thousands parted by commas": (
        '{"a": {"b": 500,000,000, "c": 1}}',
        {"a": {"b": 500000000, "c": 1}},
        {"number_form"},
    ),
    "a decimal comma": ('{"a": 0,001\n}', {"a": 0.001}, {"number_form"}),
    "a list of numbers": ('{"a": [1,200,300]}', {"a": [1, 200, 300]}, set()),
    "an ellipsis for the rest": ('{"a": 1, ...}', {"a": 1}, {"placeholder"}),
    "an ellipsis between": ('{"a": 1,\n  ...,\n  "b": 2}', {"a": 1, "b": 2}, {"placeholder"}),
    "an ellipsis alone": ('{"a": {…}}', {"a": {}}, {"placeholder"}),
    "an ellipsis as a value": ('{"a": ...\n}', {"a": "..."}, {"placeholder"}),
    "Hjson's text of several lines": (
        "{\"a\":\n  '''\n  x\n    y\n  '''\n}",
        {"a": "x\n  y"},
        {"quotes"},
    ),
    "Hjson without braces": (
        "# c\na: 1\nb: {\n  c: true\n}\n",
        {"a": 1, "b": {"c": True}},
        {"comment", "missing_braces", "unquoted_key", "missing_comma"},
    ),
    "arithmetic": ('{"a": 2 * 1024}', {"a": "2 * 1024"}, {"expression"}),
    "backslashes": (r'{"a": "C:\logs"}', {"a": r"C:\logs"}, {"escape"}),
    "tab in a string": ('{"a": "x\ty"}', {"a": "x\ty"}, {"escape"}),
    "string not closed": ('{"a": "x,\n"b": 1}', {"a": "x", "b": 1}, {"unclosed_string"}),
    "wrong bracket": ('{"a": [1, 2}}', {"a": [1, 2]}, {"bracket"}),
    "one bracket too many": ('{"a": 1}}', {"a": 1}, {"bracket"}),
    "cut off": ('{"a": {"b": 1', {"a": {"b": 1}}, {"unfinished"}),
    "no braces": ('"a": 1,\n"b": 2', {"a": 1, "b": 2}, {"missing_braces"}),
    "code fence": ('```json\n{"a": 1}\n```\n', {"a": 1}, {"text_around"}),
    "fence left behind": ('{"a": 1}\n```', {"a": 1}, {"text_around"}),
    "prose and fence": ('Here:\n```\n{"a": 1}\n```\nHave fun', {"a": 1}, {"text_around"}),
    "assignment": ('ds_config = {"a": 1}\n', {"a": 1}, {"text_around"}),
    "two fences": (
        '```json\n{"a": 1}\n```\nor\n```json\n{"a": 2}\n```\n',
        {"a": 1},
        {"text_around", "several_documents"},
    ),
    "braces in the text after a fence": (
        '```\n{"a": 1}\n```\nwith {this}',
        {"a": 1},
        {"text_around"},
    ),
    "two documents": ('{"a": 1}\n{"b": 2}', {"a": 1}, {"several_documents"}),
    "text after the end": ('{"a": 1} b', {"a": 1}, {"extra_data"}),
    "the same key, equal": ('{"a": 1, "a": 1}', {"a": 1}, {"duplicate_key"}),
    "the same key, different": ('{"a": 1, "a": 2}', {"a": 2}, {"duplicate_key"}),
    "byte order mark": ('\ufeff{"a": 1}', {"a": 1}, {"byte_order_mark"}),
    "invisible blanks": ('{"a":\u00a01}', {"a": 1}, {"blank"}),
    "too large a number": ('{"a": 1e400}', {"a": float("inf")}, {"overflow"}),
    "a large exponent": ('{"a": 1e+300}', {"a": 1e300}, set()),
    "another language": ('{"名字": "值"}', {"名字": "值"}, set()),
    "no object": ("[1, 2]", [1, 2], set()),
}


@pytest.mark.parametrize(("text", "meant", "kinds"), SAMPLES.values(), ids=SAMPLES)
def test_what_is_meant_is_read_and_each_fault_is_named(text: str, meant: Any, kinds: set[str]) -> None:
    document = parse_document(text)
    assert document.value == meant
    assert {fault.kind for fault in document.faults} == kinds


@pytest.mark.parametrize(("text", "meant", "kinds"), SAMPLES.values(), ids=SAMPLES)
def test_verdicts_are_those_of_the_loaders_own_readers(text: str, meant: Any, kinds: set[str]) -> None:
    document = parse_document(text)
    value, is_read = _hjson(text)
    assert document.deepspeed_reads == (is_read and value == meant)
    assert (document.deepspeed_error == "") == is_read
    assert document.hf_reads == _json(text)


def _hjson(text: str) -> tuple[Any, bool]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    try:
        return hjson.loads(text, object_pairs_hook=once), True
    except Exception:
        return None, False


def _json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return "1e400" not in text  # read as infinity, which no configuration means


@pytest.mark.parametrize(("text", "meant", "kinds"), SAMPLES.values(), ids=SAMPLES)
def test_edits_make_it_json_of_the_same_meaning(text: str, meant: Any, kinds: set[str]) -> None:
    document = parse_document(text)
    mended = apply_edits(text, [edit for fault in document.faults for edit in fault.edits])
    assert json.loads(mended) == meant


FOREIGN = {
    "YAML": "train_batch_size: 8\nzero_optimization:\n  stage: 2\n",
    "YAML ": "---\n- a\n",
    "TOML or INI": "[zero_optimization]\nstage = 2\n",
    "a shell script": "#!/bin/bash\ndeepspeed train.py --deepspeed ds_config.json\n",
    "a Python file": "import deepspeed\nconfig = {'a': 1}\n",
    "XML or HTML": "<!DOCTYPE html>\n<html></html>",
    "base64 text": "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0=",
}


def test_a_merge_conflict_is_named_at_its_first_line() -> None:
    text = '{\n  "a": 1,\n<<<<<<< HEAD\n  "b": 1\n=======\n  "b": 2\n>>>>>>> theirs\n}\n'
    document = parse_document(text)
    (fault,) = document.faults
    assert (fault.kind, fault.reason) == ("unreadable", "a merge conflict is left in the file")
    assert document.lines.position(fault.start) == (3, 1)
    assert not fault.edits


def test_a_number_of_too_many_digits_is_named_in_its_place() -> None:
    (fault,) = parse_document(f'{{"a": 1, "b": {"9" * 5000}}}').faults
    assert (fault.start, fault.end) == (14, 5014)
    assert fault.reason == "a number of 5000 digits is longer than Python's readers take"


@pytest.mark.parametrize("kind", FOREIGN)
def test_another_kind_of_file_is_named(kind: str) -> None:
    (fault,) = parse_document(FOREIGN[kind]).faults
    assert (fault.kind, fault.reason) == ("foreign", f"this is {kind.strip()}, not JSON")


@pytest.mark.parametrize("text", ["", " \n\t", "\ufeff", "// nothing\n"])
def test_an_empty_file_is_named(text: str) -> None:
    assert "empty" in [fault.kind for fault in parse_document(text).faults]


@pytest.mark.parametrize(
    "text", ['{"a":' * 100 + "1" + "}" * 100, "[" * 100_000, '{"a":' * 3000 + "1" + "}" * 3000]
)
def test_deep_nesting_is_a_fault_and_no_crash(text: str) -> None:
    document = parse_document(text)
    assert document.root is None
    assert document.faults[-1].kind == "too_deep"


def test_places_are_those_of_the_file_not_of_the_mended_text() -> None:
    document = parse_document("{\n  // note\n  'stage': True,\n  b: [1, 'x']\n}")
    assert document.root is not None
    stage, other = document.root.members
    places = [
        document.lines.position(offset) for offset in (stage.start, stage.end, stage.node.start, other.start)
    ]
    assert places == [(3, 3), (3, 10), (3, 12), (4, 3)]
    assert document.text[stage.node.start : stage.node.end] == "True"
    assert document.text[other.node.items[1].start : other.node.items[1].end] == "'x'"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_the_writer_ends_them(end: str) -> None:
    document = parse_document(f'{{{end}  "a": 1,{end}  "a": 2{end}}}')
    (fault,) = document.faults
    assert document.lines.position(fault.start) == (3, 3)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(value=json_values, indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
def test_the_tree_of_any_json_is_its_value_with_places(
    value: Any, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    document = parse_document(text)
    assert document.root is not None
    assert document.value == value
    for node in document.root.nodes():
        assert json.loads(text[node.start : node.end]) == node.value
    for _, member in document.root.walk():
        assert json.loads(text[member.start : member.end]) == member.key


@given(
    value=st.dictionaries(
        st.text("abc_", min_size=1), st.booleans() | st.none() | st.text("xyz'\"", max_size=3)
    )
)
def test_pythons_own_repr_is_read_back(value: dict[str, Any]) -> None:
    assert parse_document(repr(value)).value == value
