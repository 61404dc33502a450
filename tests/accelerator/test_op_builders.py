"""Which ops DeepSpeed finds, and what it is told of the others."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.accelerator import ds_report, host_build
from npu_plugins.accelerator import op_builders as ops
from npu_plugins.accelerator.host_build import HostBuildError, HostExtension, build, summary
from npu_plugins.accelerator.kernels.host_adam import HostAdam
from npu_plugins.errors import NpuPluginsError
from tests.harness.fixtures import on_ranks

PRELOAD = ("deepspeed",)
SOURCE = """#include <pybind11/pybind11.h>
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("two", [] { return 2; }); }
"""


@pytest.fixture
def no_loaded_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's memory of ops, emptied for one test."""
    monkeypatch.setattr(ops.builder.OpBuilder, "_loaded_ops", {})


@pytest.mark.parametrize("name", ops.__all__)
def test_builders_need_no_cann(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    builder = getattr(ops, name)()
    assert builder.name == builder.NAME
    assert builder.absolute_name()
    assert builder.is_compatible() in (True, False)
    for source in builder.sources():
        assert Path(builder.deepspeed_src_path(source)).is_file()


@given(
    st.sampled_from(
        ["SparseAttnBuilder", "EvoformerAttnBuilder", "FPQuantizerBuilder", "GDSBuilder", "XBuilder"]
    )
)
def test_an_absent_op_is_named(class_name: str) -> None:
    kind = ops.NotImplementedBuilder.of(class_name)
    assert kind is ops.NotImplementedBuilder.of(class_name)
    assert issubclass(kind, ops.NotImplementedBuilder)
    assert not kind().is_compatible()
    with pytest.raises(
        NpuPluginsError, match=f"{class_name.removesuffix('Builder')} op has no NPU implementation"
    ):
        kind().load()


def test_without_a_compiler_torch_takes_over(
    no_loaded_ops: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with caplog.at_level(logging.WARNING, "npu_plugins"):
        first, second = ops.CPUAdamBuilder().load(), ops.CPUAdamBuilder().load()
    assert isinstance(first, HostAdam)
    assert first is second
    (record,) = caplog.records
    assert "cpu_adam runs as torch operations" in record.getMessage()
    assert "'no-such-compiler' does not run" in record.getMessage()
    assert "install g++" in record.getMessage()


def test_an_unwritable_cache_lets_torch_take_over(
    no_loaded_ops: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file"))
    assert isinstance(ops.CPUAdamBuilder().load(), HostAdam)
    assert "cannot be written" in caplog.text
    assert "TORCH_EXTENSIONS_DIR" in caplog.text


def test_only_the_first_rank_warns(
    no_loaded_ops: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert isinstance(ops.CPUAdamBuilder().load(), HostAdam)
    assert not caplog.records


def test_nvme_offload_without_libaio_is_refused(no_loaded_ops: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops.AsyncIOBuilder, "has_function", lambda *args, **kwargs: False)
    builder = ops.AsyncIOBuilder()
    assert not builder.is_compatible()
    with pytest.raises(NpuPluginsError, match="async_io.*libaio-dev"):
        builder.load()


def test_sources_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(HostBuildError, match="nothing.cpp"):
        HostExtension("x", (tmp_path / "nothing.cpp",), (), ())
    with pytest.raises(HostBuildError, match="none named"):
        HostExtension("x", (), (), ())


def extension(directory: Path, text: str = SOURCE, name: str = "tiny_op") -> HostExtension:
    """An extension of one file."""
    source = directory / f"{name}.cpp"
    source.write_text(text)
    return HostExtension(name, (source,), (directory,), ("-O0",))


def test_the_cache_key_has_all_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = extension(tmp_path)
    keys = {plain.key("g++ 12"), plain.key("g++ 13")}
    keys.add(HostExtension(plain.name, plain.sources, plain.include_dirs, ("-O3",)).key("g++ 12"))
    monkeypatch.setattr(host_build, "processor", lambda: "another processor")
    keys.add(plain.key("g++ 12"))
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    keys.add(plain.key("g++ 12"))
    keys.add(extension(tmp_path, SOURCE + "// changed").key("g++ 12"))
    (tmp_path / "new.h").write_text("// a header")
    keys.add(plain.key("g++ 12"))
    assert len(keys) == 7


def test_equal_sources_elsewhere_share_a_build(tmp_path: Path) -> None:
    keys = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        keys.add(extension(tmp_path / name).key("g++ 12"))
    assert len(keys) == 1


def test_a_broken_source_gives_the_compilers_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    with pytest.raises(HostBuildError, match="broken_op.*error: .*no_such_type"):
        build(extension(tmp_path, "no_such_type x;\n", "broken_op"))


@given(st.lists(st.text(alphabet="ab \n", max_size=8), max_size=6))
def test_a_build_log_always_has_a_summary(lines: list[str]) -> None:
    assert summary(lines).strip()
    assert summary([*lines, "f.cpp:1: error: bad", "ninja: stopped"]) == "f.cpp:1: error: bad"


@pytest.mark.slow
def test_a_killed_build_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    made = extension(tmp_path)
    program = (
        "from pathlib import Path\nfrom npu_plugins.accelerator.host_build import HostExtension, build\n"
        f"d = Path({str(tmp_path)!r})\n"
        "build(HostExtension('tiny_op', (d / 'tiny_op.cpp',), (d,), ('-O0',)))\n"
    )
    victim = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "LOCAL_RANK": "0"},
    )
    assert victim.stderr is not None
    for line in victim.stderr:
        if "compiling tiny_op" in line:
            break
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    (directory,) = (tmp_path / "cache" / "npu_plugins").iterdir()
    (directory / "lock").touch()  # what torch leaves behind if it is killed a moment later
    assert build(made).two() == 2
    stamp = (directory / "finished").stat().st_mtime_ns
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "compiling" not in again.stderr  # from the cache
    assert (directory / "finished").stat().st_mtime_ns == stamp


def test_a_spoilt_cache_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    made = extension(tmp_path)
    directory = tmp_path / "npu_plugins" / f"tiny_op-{made.key(host_build.compiler_version())}"
    directory.mkdir(parents=True)
    (directory / "tiny_op.so").write_bytes(b"half a library")
    (directory / "finished").write_text("tiny_op.so")
    with pytest.raises(HostBuildError, match="cannot be loaded.*delete .* to compile it anew"):
        build(made)


def test_ds_reports_function_does_without_cann(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    assert ds_report.installed_cann_path() is None
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "gone"))
    assert ds_report.installed_cann_path() is None
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert ds_report.installed_cann_path() == str(tmp_path)


@pytest.mark.npu
@on_ranks(1, preload=PRELOAD)
def test_ds_report_runs() -> None:
    import contextlib
    import io
    import os

    os.environ.pop("ASCEND_HOME_PATH", None)
    from deepspeed import env_report

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        env_report.main()
    report = text.getvalue()
    assert "torch_npu version" in report
    assert "CANN_HOME does not exist" in report
    for op in ("cpu_adam", "fused_adam", "async_io"):
        assert op in report


@pytest.mark.npu
@on_ranks(1, preload=PRELOAD)
def test_deepspeed_finds_the_builders() -> None:
    from deepspeed.ops import op_builder
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    assert op_builder.CPUAdamBuilder is ops.CPUAdamBuilder
    assert op_builder.FusedAdamBuilder is ops.FusedAdamBuilder
    assert {"cpu_adam", "cpu_adagrad", "cpu_lion", "fused_adam", "async_io", "pin_memory"} <= set(ALL_OPS)
    with pytest.raises(NpuPluginsError, match="EvoformerAttn op has no NPU implementation"):
        op_builder.EvoformerAttnBuilder().load()
