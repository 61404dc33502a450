"""Each code on a configuration of its own: it is found in its place, it is true, and its mend is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_configs.documents import parse_document
from ds_configs.lint import Finding, Options, codes, fix_document, lint_text
from tests.ds_configs.lint.cases import CASES, ENGINE, Case
from tests.ds_configs.lint.flags import flags_of, total_steps
from tests.ds_configs.oracle import Oracle

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "ds_configs" / "lint" / "engine.json"


def found_in(case: Case, text: str) -> Finding:
    report = lint_text(text, Options(case.target, case.ranks))
    found = [each for each in report.findings if (each.code, each.key) == (case.code, case.key)]
    assert len(found) == 1, [f"{each.code} {each.key}: {each.reason}" for each in report.findings]
    return found[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_found_where_it_stands(case: Case) -> None:
    text = json.dumps(case.config, indent=2)
    finding = found_in(case, text)
    line = text.splitlines()[finding.line - 1]
    # A key that is left out is shown at the block that lacks it.
    names = [case.key, *case.key.split(".")] if case.key else []
    assert any(f'"{name}"' in line for name in names) or line == "{"


@pytest.mark.parametrize("case", [case for case in CASES if case.target == "deepspeed"], ids=str)
def test_what_it_says_of_the_parser_is_true(case: Case, oracle: Oracle) -> None:
    """What lint calls refused by the parser is, and what it calls ignored or later refused is taken by it."""
    found_in(case, json.dumps(case.config))
    parser = codes()[case.code].stops == "parser" or case.code == "DSC117"
    ranks = case.ranks or 2 + 2 * (case.code == "DSC304")
    if case.code != "DSC137":  # whatever the other program's file may be to DeepSpeed
        assert bool(oracle.deepspeed(case.config, ranks)) == parser


@pytest.mark.parametrize("case", [case for case in CASES if case.target == "hf"], ids=str)
def test_what_it_says_of_hf_is_true(case: Case, oracle: Oracle) -> None:
    found_in(case, json.dumps(case.config))
    run, total = flags_of(case.config), total_steps(case.config)
    filled = oracle.ask("hf", config=case.config, run=run, model={"hidden_size": 64}, total=total)
    said = filled if isinstance(filled, str) else oracle.deepspeed(filled)
    assert bool(said) == (codes()[case.code].stops != "")


@pytest.mark.parametrize("case", [case for case in CASES if case.fixed is not None], ids=str)
def test_fixing_mends_it(case: Case, oracle: Oracle) -> None:
    options = Options(case.target, case.ranks)
    fixed = fix_document(parse_document(json.dumps(case.config, indent=2)), options)
    assert json.loads(fixed.text) == case.fixed
    assert list(json.loads(fixed.text)) == list(case.fixed or {})
    assert not [each for each in fixed.after.findings if (each.code, each.key) == (case.code, case.key)]
    if case.target == "deepspeed" and codes()[case.code].stops == "parser":
        assert oracle.deepspeed(json.loads(fixed.text), case.ranks or 1) == ""


@pytest.mark.parametrize("case", [case for case in CASES if "auto" not in json.dumps(case.config)], ids=str)
@pytest.mark.parametrize("unsafe", [False, True])
def test_what_both_are_to_read_is_given_no_auto(case: Case, unsafe: bool) -> None:
    """DeepSpeed by itself refuses it."""
    fixed = fix_document(parse_document(json.dumps(case.config)), Options("both", case.ranks), unsafe)
    assert '"auto"' not in fixed.text
    if case.code == "DSC302":
        assert json.loads(fixed.text).keys() >= case.config.keys()


@pytest.mark.parametrize("case", [case for case in CASES if case.fixed is None], ids=str)
def test_what_needs_a_decision_is_not_fixed(case: Case) -> None:
    finding = found_in(case, json.dumps(case.config))
    if finding.fixable and finding.severity != "note":
        assert case.name == "moved into its block"


def test_what_it_says_of_deepspeed_initialize_is_true(oracle: Oracle) -> None:
    """Every configuration of ENGINE really stops deepspeed.initialize, and none of its mends does.

    Nor does what Muon ignores.
    """
    configs = [case.config for case in ENGINE]
    mended = [case.fixed for case in ENGINE if case.fixed is not None]
    mended += [case.config for case in CASES if case.name == "of Muon"]
    said = oracle.ask("engines", configs=[*configs, *mended])
    passed = [str(case) for case, error in zip(ENGINE, said, strict=False) if not error]
    assert passed == []
    assert [error for error in said[len(configs) :] if error] == []


def test_the_parameters_of_torchs_schedulers_are_those_of_the_installed_torch(oracle: Oracle) -> None:
    table = json.loads(TABLE.read_text())
    needs = oracle.ask("schedulers", names=table["schedulers"]["torch"])
    assert {name: names for name, names in needs.items() if names} == table["needs"]


def test_every_code_has_a_case_or_is_about_the_text() -> None:
    covered = {case.code for case in CASES} | {code.code for code in codes().values() if code.fault}
    assert set(codes()) - covered == {"DSC136"}  # no object: test_text.py


@pytest.mark.parametrize(
    "key", ["zero_optimisation", "zero_optimizations", "zero-optimization", "Zero_Optimization"]
)
def test_misspelt_keys_get_the_likely_word(key: str) -> None:
    report = lint_text(json.dumps({"train_batch_size": 1, key: {}}))
    (finding,) = [each for each in report.findings if each.key == key]
    assert (finding.code, finding.mend) == ("DSC401", "write zero_optimization")


@pytest.mark.parametrize(
    "stage",
    [{"stge": 3}, {"stage": 5}, {"stage": "three"}, {}, {"Stage": 3}, {"stage": "auto"}, {"zero_stage": 3}],
)
def test_what_stage_3_needs_stays_where_the_stage_is_not_sure(stage: dict[str, Any]) -> None:
    offload, live = {"device": "cpu"}, 100
    zero = {**stage, "overlap_comm": False, "offload_param": offload, "stage3_max_live_parameters": live}
    text = json.dumps({"train_batch_size": 8, "zero_optimization": zero})
    fixed = json.loads(fix_document(parse_document(text), Options("deepspeed")).text)["zero_optimization"]
    assert (fixed["offload_param"], fixed["stage3_max_live_parameters"]) == (offload, live)


@pytest.mark.parametrize(
    "config",
    [
        {"train_batch_size": 8, "max_grad_norm": 1.0, "grad_clip": 2.0},
        {"train_batch_size": 8, "stage": 2, "zero_stage": 3, "overlap_comm": False},
        {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"learning_rate": 0.1, "lr": 0.2}}},
        {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"momentumm": 0, "momentun": 0}}},
        {"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": False}},
    ],
)
@pytest.mark.parametrize("target", ["hf", "deepspeed"])
@pytest.mark.parametrize("unsafe", [False, True])
def test_mending_writes_no_key_twice(config: dict[str, Any], target: str, unsafe: bool) -> None:
    fixed = fix_document(parse_document(json.dumps(config)), Options(target), unsafe)
    json.loads(fixed.text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def test_versions_differ() -> None:
    text = json.dumps({"train_batch_size": 8, "amp": {"enabled": True}})

    def errors(version: str) -> list[str]:
        report = lint_text(text, Options(deepspeed_version=version))
        return [each.code for each in report.findings if each.severity == "error"]

    assert errors("0.16.9") == []
    assert errors("0.19.8") == ["DSC201"]


def test_another_device_has_no_rules_about_ascend() -> None:
    text = json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": True}})
    assert "DSC801" in {each.code for each in lint_text(text).findings}
    assert "DSC801" not in {each.code for each in lint_text(text, Options(device="any")).findings}
