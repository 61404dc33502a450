"""Random mutations of valid configurations: no exception, and nothing called clean that a loader refuses.

LINT_MUTATIONS sets the number of examples of each test; the full run is 10000.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import hjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds_configs.documents import parse_document
from ds_configs.lint import Options, Report, fix_document, lint_document, lint_text
from ds_configs.lint.json_report import as_json
from ds_configs.lint.sarif import as_sarif
from ds_configs.lint.text_report import as_text
from tests.ds_configs.lint.flags import flags_of, total_steps
from tests.ds_configs.lint.mutations import BASES, mutated
from tests.ds_configs.oracle import Oracle

EXAMPLES = int(os.environ.get("LINT_MUTATIONS", "150"))
randomly = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def deepspeed_says(text: str, oracle: Oracle, replicas: int = 1) -> str:
    """What DeepSpeed's reader and DeepSpeedConfig say against a file with this text; "" for nothing."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        if twice:
            raise ValueError(f"duplicate keys {twice}")
        return dict(pairs)

    try:
        config = hjson.loads(text, object_pairs_hook=refuse_duplicates)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not isinstance(config, dict):
        return f"a {type(config).__name__}, not an object"
    return oracle.deepspeed(config, replicas)


def hf_says(text: str, oracle: Oracle) -> str:
    """What HF's Trainer, accelerate and then DeepSpeedConfig say, with flags that match the file."""
    config = json.loads(text)
    filled = oracle.ask(
        "hf", config=config, run=flags_of(config), model={"hidden_size": 64}, total=total_steps(config)
    )
    return filled if isinstance(filled, str) else oracle.deepspeed(filled)


def is_clean(report: Report) -> bool:
    return not report.count("error")


@pytest.mark.parametrize("name", BASES)
def test_the_configurations_to_mutate_are_accepted_and_clean(name: str, oracle: Oracle) -> None:
    text = json.dumps(BASES[name])
    target = "hf" if name.startswith("HF") else "deepspeed"
    report = lint_text(text, Options(target, world_size=1))
    assert [f"{each.code} {each.reason}" for each in report.findings if each.severity == "error"] == []
    assert (hf_says(text, oracle) if target == "hf" else deepspeed_says(text, oracle)) == ""


@randomly
@given(text=mutated(), ranks=st.sampled_from([1, 2]))
def test_no_file_is_clean_that_deepspeed_refuses(text: str, ranks: int, oracle: Oracle) -> None:
    report = lint_text(text, Options("deepspeed", world_size=ranks))
    if is_clean(report):
        assert deepspeed_says(text, oracle, ranks) == ""


@randomly
@given(text=mutated())
def test_no_file_is_clean_that_hf_refuses(text: str, oracle: Oracle) -> None:
    if is_clean(lint_text(text, Options("hf", world_size=1))):
        assert hf_says(text, oracle) == ""


@randomly
@given(text=mutated(), target=st.sampled_from([None, "hf", "deepspeed", "both"]), unsafe=st.booleans())
def test_fixing_ends_and_leaves_nothing_to_fix(
    text: str, target: str | None, unsafe: bool, oracle: Oracle
) -> None:
    fixed = fix_document(parse_document(text), Options(target, world_size=1), unsafe)
    again = fix_document(fixed.after.document, Options(fixed.before.target_name, world_size=1), unsafe)
    assert again.text == fixed.text
    twice = [
        sum(fault.kind == "duplicate_key" for fault in report.document.faults)
        for report in (fixed.before, fixed.after)
    ]
    assert twice[1] <= twice[0] or fixed.before.document.root is None
    # What nobody read, for it was misspelt or misplaced, is read now, with all that is wrong in it.
    revealed = any(finding.code in ("DSC401", "DSC402") for finding in fixed.applied)
    if not revealed and not fixed.before.refusals("reader", "parser", "engine", "accelerate"):
        assert not fixed.after.refusals("reader", "parser", "engine", "accelerate")
    if is_clean(fixed.after) and fixed.before.target_name == "deepspeed":
        assert deepspeed_says(fixed.text, oracle) == ""


@randomly
@given(text=mutated(), target=st.sampled_from([None, "both"]))
def test_findings_lie_in_the_file_and_print_in_every_format(text: str, target: str | None) -> None:
    document = parse_document(text)
    report = lint_document(document, Options(target))
    for finding in report.findings:
        assert 0 <= finding.line <= finding.end_line <= len(document.lines.starts)
        assert all(0 <= edit.start <= edit.end <= len(text) for edit in finding.edits)
        assert finding.reason and finding.consequence and finding.mend
    assert as_text([report]).count("\n") == 3 * len(report.findings) + 1
    assert len(json.loads(as_json([report]))["files"][0]["findings"]) == len(report.findings)
    assert len(json.loads(as_sarif([report]))["runs"][0]["results"]) == len(report.findings)


@randomly
@given(data=st.binary(max_size=80))
def test_any_bytes_can_be_read(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_bytes(data)
    from ds_configs.lint import lint_path

    report = lint_path(str(file), Options("both", world_size=1))
    assert report.count("error")
