"""Edits change one key and leave everything else as it was written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.documents import (
    Document,
    Edit,
    apply_edits,
    delete_member,
    insert_member,
    parse_document,
    rename_key,
    replace_value,
)
from ds_configs.documents.tree import Node
from ds_configs.errors import DsConfigError


def root_of(text: str) -> Node:
    document: Document = parse_document(text)
    assert document.root is not None
    return document.root


@pytest.mark.parametrize(
    ("before", "index", "after"),
    [
        ('{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}', 1, '{\n  "a": 1,\n  "c": 3\n}'),
        ('{\n  "a": 1,\n  "b": 2\n}', 1, '{\n  "a": 1\n}'),
        ('{\n  "a": 1\n}', 0, "{\n  \n}"),
        ('{"a": 1, "b": 2}', 0, '{"b": 2}'),
        ('{"a": 1, "b": 2}', 1, '{"a": 1}'),
        ('{"a": 1, // one\n "b": 2}', 1, '{"a": 1 // one\n }'),
        ('{"a": 1,\r\n "b": 2,\r\n "c": 3}', 1, '{"a": 1,\r\n "c": 3}'),
    ],
)
def test_deleting_takes_comma_and_line_along(before: str, index: int, after: str) -> None:
    assert apply_edits(before, delete_member(before, root_of(before), index)) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{"x": true}'),
        ('{"a": 1}', '{"a": 1, "x": true}'),
        ('{\n    "a": 1\n}', '{\n    "a": 1,\n    "x": true\n}'),
        ('{\n\t"a": {\n\t}\n}', '{\n\t"a": {\n\t},\n\t"x": true\n}'),
    ],
)
def test_inserting_follows_the_layout(before: str, after: str) -> None:
    assert apply_edits(before, insert_member(before, root_of(before), "x", True)) == after


def test_renaming_and_replacing_keep_the_rest() -> None:
    text = '{ "cpu_ofload" : true , // why\n  "b":1e8 }'
    root = root_of(text)
    edits = [*rename_key(root.members[0], "cpu_offload"), *replace_value(root.members[1].node, 5)]
    assert apply_edits(text, edits) == '{ "cpu_offload" : true , // why\n  "b":5 }'


def test_of_edits_that_overlap_the_first_wins() -> None:
    assert apply_edits("abcdef", [Edit(3, 5, "X"), Edit(1, 4, "Y"), Edit(5, 6, "Z")]) == "aYeZ"
    with pytest.raises(DsConfigError, match="an edit runs from 3 to 1"):
        Edit(3, 1, "")


names = st.text("abcd", min_size=1, max_size=2)


@given(
    config=st.dictionaries(names, st.integers() | st.dictionaries(names, st.none(), max_size=2), min_size=1),
    indent=st.sampled_from([None, 2]),
    data=st.data(),
)
def test_edits_of_any_object_do_what_they_say(
    config: dict[str, Any], indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(config, indent=indent)
    root = root_of(text)
    index = data.draw(st.integers(0, len(config) - 1))
    name = list(config)[index]
    deleted = json.loads(apply_edits(text, delete_member(text, root, index)))
    assert list(deleted.items()) == [pair for pair in config.items() if pair[0] != name]
    inserted = json.loads(apply_edits(text, insert_member(text, root, "new", [1])))
    assert list(inserted.items()) == [*config.items(), ("new", [1])]
