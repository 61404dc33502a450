"""Faults of the text become findings for whom they concern, and nothing is mended that is only guessed."""

from __future__ import annotations

import json

import pytest

from ds_configs.documents import parse_document
from ds_configs.lint import Options, fix_document, lint_text

COMMENTED = '{\n  "train_batch_size": 8, // for 8 ranks\n}'
FAULTS = {
    "DSC102": "",
    "DSC107": "train_batch_size: 8\n",
    "DSC108": '```json\n{"train_batch_size": 8}\n```',
    "DSC109": '{"train_batch_size": 8} end',
    "DSC110": '{"train_batch_size": 8}{"train_batch_size": 8}',
    "DSC111": '{"train_batch_size": 8 /* why */}',
    "DSC112": '{"train_batch_size": 8,}',
    "DSC113": '{"train_batch_size": 8,, "dump_state": true}',
    "DSC114": '{"train_batch_size": 8\n"dump_state": true}',
    "DSC115": '{"train_batch_size" 8}',
    "DSC116": '{"train_batch_size": 8, "dump_state": }',
    "DSC117": '{"train_batch_size": ${SIZE}\n}',
    "DSC118": "{'train_batch_size': 8}",
    "DSC119": '{"train_batch_size" = 8}',
    "DSC120": "{train_batch_size: 8}",
    "DSC121": '{"train_batch_size": 8, "communication_data_type": fp32\n}',
    "DSC122": '{"train_batch_size": 8, "dump_state": True}',
    "DSC123": '{"train_batch_size": NaN}',
    "DSC124": '{"train_batch_size": 1_000}',
    "DSC125": '{"train_batch_size": 8 * 4}',
    "DSC126": '{"train_batch_size": 8, "tensorboard": {"output_path": "C:\\logs"}}',
    "DSC127": '{"train_batch_size": 8, "communication_data_type": "fp32\n}',
    "DSC128": '{"train_batch_size": 8]',
    "DSC129": '{"train_batch_size": 8',
    "DSC130": '"train_batch_size": 8, "dump_state": true',
    "DSC131": "[" * 100 + "]" * 100,
    "DSC132": '{"train_batch_size": 8, "train_batch_size": 4}',
    "DSC133": '{"train_batch_size":\u00a08}',
    "DSC136": "[1]",
    "DSC138": '{"train_batch_size": 1e999}',
}
# A comment and its like stop HF alone, two equal keys DeepSpeed alone.
FOR_HF = {"DSC111", "DSC112", "DSC114", "DSC118", "DSC120", "DSC121", "DSC130"}
FOR_DEEPSPEED = {"DSC132"}


@pytest.mark.parametrize("code", FAULTS)
def test_each_fault_has_its_code_for_whom_it_concerns(code: str) -> None:
    def found(target: str) -> bool:
        report = lint_text(FAULTS[code], Options(target))
        return code in [each.code for each in report.findings if each.severity == "error"]

    assert found("hf") == (code not in FOR_DEEPSPEED)
    assert found("deepspeed") == (code not in FOR_HF)
    assert found("both")


def test_a_fault_knows_line_column_and_key() -> None:
    (finding,) = [
        each
        for each in lint_text('{\n  "fp16": {\n    "enabled": True\n  }\n}').findings
        if each.code == "DSC122"
    ]
    assert (finding.line, finding.column, finding.end_column, finding.key) == (3, 16, 20, "fp16.enabled")


def test_without_a_target_comments_are_remarks_and_stay() -> None:
    report = lint_text(COMMENTED)
    assert report.target_name == "deepspeed"
    assert {each.severity for each in report.findings if each.code in ("DSC111", "DSC112")} == {"note"}
    assert fix_document(report.document).text == COMMENTED


def test_for_hf_comments_go() -> None:
    fixed = fix_document(parse_document(COMMENTED), Options("hf"))
    assert json.loads(fixed.text)["train_batch_size"] == 8
    assert fixed.text == (
        '{\n  "train_batch_size": 8,\n  "zero_optimization": {"stage": 0},\n'
        '  "gradient_accumulation_steps": "auto" \n}'
    )


def test_an_auto_that_hf_fills_makes_the_file_hfs() -> None:
    assert lint_text('{"train_batch_size": "auto"}').target_name == "hf"
    assert lint_text('{"train_batch_size": 8, "pipeline": {"stages": "auto"}}').target_name == "deepspeed"


@pytest.mark.parametrize("code", ["DSC109", "DSC127", "DSC128", "DSC129"])
def test_a_guessed_structure_is_mended_on_demand_only(code: str) -> None:
    document = parse_document(FAULTS[code])
    assert fix_document(document, Options("deepspeed", 1)).text == FAULTS[code]
    bold = fix_document(document, Options("deepspeed", 1), unsafe=True)
    assert json.loads(bold.text)["train_batch_size"] == 8


@pytest.mark.parametrize("code", ["DSC110", "DSC116", "DSC117", "DSC123", "DSC125", "DSC138"])
def test_what_nobody_can_know_is_never_filled_in(code: str) -> None:
    fixed = fix_document(parse_document(FAULTS[code]), Options("both", 1), unsafe=True)
    assert code in [each.code for each in fixed.after.findings]


def test_order_layout_and_numbers_of_the_rest_stay() -> None:
    before = (
        '{\n    "zero_optimization" : {"stage":2,   "overlap_comm": true,\n'
        '        "reduce_bucket_size": 2e8, "contiguous_gradients": true},\n'
        '    "train_batch_size":8,\n    "bf16": { "enabled": "true" }\n}\n'
    )
    after = before.replace('"overlap_comm": true', '"overlap_comm": false').replace('"true"', "true")
    assert fix_document(parse_document(before)).text == after


def test_a_file_of_another_program_is_said_to_be_one() -> None:
    report = lint_text(
        json.dumps({"output_dir": "out", "num_train_epochs": 1, "per_device_train_batch_size": 8})
    )
    assert "DSC137" in [each.code for each in report.findings]
    assert not [each for each in report.findings if each.edits]
