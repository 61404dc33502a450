"""Every file becomes text or a fault that says what it is."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from ds_configs.documents import read_document
from ds_configs.documents.source import LARGEST_BYTES

TEXT = '{"train_batch_size": 8, "名": "值"}'


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "gb18030"])
def test_other_encodings_are_read_and_named(tmp_path: Path, encoding: str) -> None:
    text = TEXT if encoding in ("utf-16", "utf-32", "gb18030") else '{"train_batch_size": 8}'
    (tmp_path / "c.json").write_bytes(text.encode(encoding))
    document = read_document(str(tmp_path / "c.json"))
    assert document.text == text
    assert document.encoding == encoding
    assert [fault.kind for fault in document.faults] == ["encoding"]
    assert document.value["train_batch_size"] == 8
    assert not document.hf_reads
    assert not document.deepspeed_reads


def test_latin_1_is_named_at_its_first_letter(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes('{"a": "é"}'.encode("latin-1"))
    document = read_document(str(tmp_path / "c.json"))
    assert (document.encoding, document.value) == ("latin-1", {"a": "é"})
    assert document.faults[0].start == TEXT.index('"') + 6


def test_windows_own_quotation_marks_are_read(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes('{"a": "é “q”"}'.encode("cp1252"))
    document = read_document(str(tmp_path / "c.json"))
    assert (document.encoding, document.value) == ("cp1252", {"a": "é “q”"})


def test_only_an_encoding_that_is_sure_is_mended_unasked(tmp_path: Path) -> None:
    """Shift-JIS reads as Chinese, too: written back as UTF-8, the text would be lost."""
    for encoding, sure in (("utf-16", True), ("shift_jis", False), ("latin-1", False)):
        text = '{"a": "é"}' if encoding == "latin-1" else '{"a": "日本語"}'
        (tmp_path / "c.json").write_bytes(text.encode(encoding))
        (fault,) = read_document(str(tmp_path / "c.json")).faults
        assert (fault.safe, "seems to be" in fault.reason) == (sure, not sure)


def test_a_mark_is_hfs_fault_alone(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    document = read_document(str(tmp_path / "c.json"))
    assert [fault.kind for fault in document.faults] == ["byte_order_mark"]
    assert (document.hf_reads, document.deepspeed_reads) == (False, True)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"\x89PNG\r\n\x1a\n....", "binary"),
        (b"PK\x03\x04....", "binary"),
        (b'{"a": 1}\x00\x01\x02\x03', "binary"),
        (b" " * (LARGEST_BYTES + 1), "too_large"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "c.json").write_bytes(data)
    document = read_document(str(tmp_path / "c.json"))
    assert document.root is None
    assert [fault.kind for fault in document.faults] == [kind]


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text("{}")
    (missing,) = read_document(str(tmp_path / "none.json")).faults
    assert missing.reason.endswith("does not exist")
    (folder,) = read_document(str(tmp_path)).faults
    assert (folder.kind, folder.mend) == ("unreadable", "it holds ds.json: name one")
    assert read_document("a\0b").faults[0].kind == "unreadable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "c.json").chmod(0)
    assert read_document(str(tmp_path / "c.json")).faults[0].kind == "unreadable"


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_document(str(tmp_path / "pipe")).faults[0].reason.endswith("is a device or a pipe")


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}')))
    assert read_document("-").value == {"a": 1}
