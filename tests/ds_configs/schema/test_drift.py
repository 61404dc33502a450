"""The schema of the installed DeepSpeed version says what the installed package says."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ds_configs.schema import VERSIONS
from tests.ds_configs.schema.choices import current_choices
from tests.ds_configs.schema.extract import VERSIONS as FOLDER
from tests.ds_configs.schema.extract import drift


def test_schema_equals_the_installed_deepspeed() -> None:
    kept = {name: value for name, value in os.environ.items() if name != "NPU_SIM"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.ds_configs.schema.extract", "--check"],
        env={**kept, "DS_ACCELERATOR": "cpu", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, (
        f"the schema and DeepSpeed differ:\n{result.stdout}\n{result.stderr[-2000:]}"
    )


def test_installed_version_is_the_newest_known() -> None:
    assert importlib.metadata.version("deepspeed") == VERSIONS[-1]


def test_there_is_a_file_for_each_version_and_no_other() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.json")) == sorted(VERSIONS)


@pytest.mark.parametrize(
    ("key", "change", "line"),
    [
        ("zero_optimization.stage", None, "zero_optimization.stage: gone from DeepSpeed"),
        ("gradient_clipping", {"default": 0.0}, "gradient_clipping: default was 1.0, is 0.0"),
        ("bf16.enabled", {"types": ["int"]}, "bf16.enabled: types was ['bool'], is ['int']"),
        (
            "gradient_allreduce_op",
            {"choices": ["mean"]},
            "gradient_allreduce_op: choices was ['mean', 'sum'], is ['mean']",
        ),
        ("no_such_key", {"types": ["int"]}, "no_such_key: new in DeepSpeed"),
    ],
)
def test_drift_names_the_key_and_what_changed(key: str, change: dict[str, object] | None, line: str) -> None:
    kept = json.loads((FOLDER / "0.19.8.json").read_text(encoding="utf-8"))
    found = copy.deepcopy(kept)
    if change is None:
        del found["keys"][key]
    else:
        found["keys"].setdefault(key, {}).update(change)
    assert drift(kept, found) == [line]
    assert drift(kept, kept) == []


def test_drift_looks_at_parameters_of_optimizers_too() -> None:
    kept = json.loads((FOLDER / "0.19.8.json").read_text(encoding="utf-8"))
    found = copy.deepcopy(kept)
    found["variants"]["optimizer.params"]["AdamW"]["lr"]["default"] = 1.0
    assert drift(kept, found) == ["optimizer.params.lr of AdamW: default was 0.001, is 1.0"]


def test_choices_are_taken_from_deepspeed_when_it_has_others(tmp_path: Path) -> None:
    (tmp_path / "parser.py").write_text("def check():\n    valid = ('auto', 'New')\n", encoding="utf-8")
    assert current_choices(["AUTO", "new"], "parser.py:valid", tmp_path) == ["AUTO", "new"]
    assert current_choices(["auto"], "parser.py:valid", tmp_path) == ["auto", "New"]
    with pytest.raises(LookupError, match="parser.py assigns nothing to gone"):
        current_choices(["auto"], "parser.py:gone", tmp_path)
