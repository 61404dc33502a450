"""What a manifest records, and what it finds changed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.parallel import ParallelConfig
from npu_plugins.checkpoint import CheckpointError, Layout, Manifest, model_digest
from npu_plugins.checkpoint.manifest import MANIFEST_FILE, record
from tests.harness.fixtures import on_ranks
from tests.tensor_parallel.models import PRELOAD

LAYOUT = Layout(ParallelConfig(tp=2, pp=2, dp=3), 1)


def written(directory: Path) -> Manifest:
    """A checkpoint of two files and its manifest."""
    (directory / "part").mkdir(parents=True)
    (directory / "part" / "a.bin").write_bytes(bytes(range(256)) * 40)
    (directory / "b.bin").write_bytes(b"")
    files = {name: record(directory / name) for name in ("part/a.bin", "b.bin")}
    manifest = Manifest(7, LAYOUT, "a model", files, {"best": 0.5, "by": {"3": [1, 2]}})
    manifest.write(directory)
    return manifest


def test_what_was_written_is_read(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert manifest.faults(tmp_path) == []
    layout = json.loads((tmp_path / MANIFEST_FILE).read_text())["layout"]
    assert layout["world_size"] == 12


def test_extras_come_back_as_json_holds_them(tmp_path: Path) -> None:
    Manifest(0, Layout(), "m", {}, {"by step": {2: "a", 10: "b"}, "pair": (1, 2)}).write(tmp_path)
    assert Manifest.read(tmp_path).extra == {"by step": {"2": "a", "10": "b"}, "pair": [1, 2]}


@given(data=st.data())
def test_any_change_of_a_file_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("changed")
    manifest = written(directory)
    file = directory / "part" / "a.bin"
    content = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        expected = "has another content than was saved: its checksum differs"
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
        expected = f"has {len(content)} bytes, not 10240: it was cut short or changed"
    file.write_bytes(content)
    assert [str(fault) for fault in manifest.faults(directory)] == [f"part/a.bin {expected}"]
    assert bool(manifest.faults(directory, checksums=False)) == ("bytes" in expected)
    file.unlink()
    assert [str(fault) for fault in manifest.faults(directory)] == ["part/a.bin is missing"]


@given(data=st.data())
def test_any_change_of_the_manifest_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("changed")
    manifest = written(directory)
    file = directory / MANIFEST_FILE
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 2))
    if data.draw(st.booleans()):
        content[place] = data.draw(st.sampled_from(b"0123456789abc {}[],:\n\xff"))
    else:
        del content[place:]
    file.write_bytes(content)
    try:
        assert Manifest.read(directory) == manifest, "a space more or less changes nothing"
    except CheckpointError as error:
        assert MANIFEST_FILE in str(error)
        assert "use an earlier checkpoint" in str(error) or "install a later one" in str(error)


def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    for name in ("../secret", "/etc/passwd", "a/../../b"):
        Manifest(1, LAYOUT, "m", {name: record(Path(__file__))}).write(tmp_path)
        with pytest.raises(CheckpointError, match="is outside the checkpoint"):
            Manifest.read(tmp_path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no npu_plugins_manifest\.json"):
        Manifest.read(tmp_path)
    body = {"format": "npu_plugins.checkpoint", "version": 99, "own_checksum": ""}
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(body))
    with pytest.raises(CheckpointError, match="is of version 99"):
        Manifest.read(tmp_path)


def test_another_model_or_layout_is_refused(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    manifest.check_fits("a model", LAYOUT)
    manifest.check_fits("a model", Layout(), other_layout=True)
    with pytest.raises(CheckpointError, match="is of another model .*a model, this one's is another"):
        manifest.check_fits("another", LAYOUT, other_layout=True)
    with pytest.raises(
        CheckpointError, match="written by tp 2 × pp 2 × dp 3 with ZeRO stage 1, but this job is tp 1 × pp 1"
    ):
        manifest.check_fits("a model", Layout())


def test_a_model_is_known_by_its_values() -> None:
    assert model_digest({"width": 3, "depth": 2}) == model_digest({"depth": 2, "width": 3})
    assert model_digest({"width": 3}) != model_digest({"width": 4})


@on_ranks(1, backend="gloo", preload=PRELOAD)
def test_a_model_is_known_by_what_shapes_its_weights() -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=32, num_hidden_layers=2)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        again = LlamaConfig.from_pretrained(folder)
    again.use_cache = False
    again.dtype = "bfloat16"
    again.attention_dropout, again.pad_token_id = 0.5, 7
    assert model_digest(again) == model_digest(config)
    assert model_digest(LlamaConfig(hidden_size=64, num_hidden_layers=2)) != model_digest(config)
