"""The report as text, JSON and SARIF.

SARIF_SCHEMA may name OASIS's own sarif-schema-2.1.0.json; without it the parts that lint writes are checked
against what the standard asks of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ds_configs.lint import Options, Report, codes, lint_path, lint_text
from ds_configs.lint.json_report import as_json
from ds_configs.lint.sarif import as_sarif
from ds_configs.lint.text_report import as_text, codes_as_text
from tests.ds_configs.lint.cases import CASES
from tests.ds_configs.lint.test_text import FAULTS

jsonschema = pytest.importorskip("jsonschema")
OWN = Path(__file__).parent / "sarif_requirements.json"


def reports() -> list[Report]:
    """A report of every case of the tests, and of files that cannot be read."""
    found = [
        lint_text(json.dumps(case.config), Options(case.target), f"dir/{i} ü.json")
        for i, case in enumerate(CASES)
    ]
    found += [lint_text(text, path="/abs/c.json") for text in FAULTS.values()]
    return [*found, lint_path("no/such file.json"), lint_text("", path="-")]


def test_sarif_is_valid() -> None:
    schema = json.loads(Path(os.environ.get("SARIF_SCHEMA", OWN)).read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    log = json.loads(as_sarif(reports()))
    assert [error.message for error in validator(schema).iter_errors(log)] == []


def test_sarif_says_what_and_where() -> None:
    report = lint_text('{\n  "train_batch_size": "8"\n}', path="dir/my config.json")
    (run,) = json.loads(as_sarif([report]))["runs"]
    (result,) = [each for each in run["results"] if each["level"] == "error"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "DSC208"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "dir/my%20config.json"
    assert place["region"] == {"startLine": 2, "startColumn": 23, "endLine": 2, "endColumn": 26}
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["replacements"] == [{"deletedRegion": place["region"], "insertedContent": {"text": "8"}}]


def test_json_carries_every_field() -> None:
    report = lint_text('{"train_batch_size": "8"}', Options("deepspeed"))
    (file,) = json.loads(as_json([report]))["files"]
    assert (file["target"], file["target_detected"], file["counts"]["error"]) == ("deepspeed", False, 1)
    found = next(each for each in file["findings"] if each["code"] == "DSC208")
    assert (found["line"], found["column"], found["key"], found["stops"]) == (
        1,
        22,
        "train_batch_size",
        "parser",
    )
    assert found["fix"] == {"safe": True, "edits": [{"start": 21, "end": 24, "replacement": "8"}]}


def test_text_gives_reason_consequence_and_mend() -> None:
    text = as_text([lint_text('{"train_batch_size": "8"}', path="c.json")], quiet=True)
    assert text == (
        "c.json:1:22: error DSC208: train_batch_size is the text '8'\n"
        '    if left: DeepSpeed compares text with a number and stops with a TypeError, or reports "8 vs 8"\n'
        "    mend: write 8 (--fix)\n"
        "c.json: 1 error, 2 notes, read for DeepSpeed alone "
        '(no "auto" for HF to fill; --for hf for HF), DeepSpeed 0.19.8\n'
    )


def test_codes_are_stable_and_listed() -> None:
    lines = codes_as_text().splitlines()
    assert [line.split()[0] for line in lines] == list(codes())
    assert len({code.name for code in codes().values()}) == len(lines)
    assert list(codes()) == sorted(codes())


def test_printing_survives_any_text() -> None:
    report = lint_text('{"train_batch_size": 8, "\\ud800": 1}')
    assert "DSC403" in as_text([report])
