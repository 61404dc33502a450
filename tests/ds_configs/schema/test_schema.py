"""What a caller gets from the schema."""

from __future__ import annotations

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.schema import LATEST, VERSIONS, Key, load_schema, refusal_of_value
from ds_configs.schema.checks import CHECKS


def reasons(document: dict[str, object], version: str = LATEST) -> dict[str, str]:
    return {".".join(refusal.path): refusal.reason for refusal in load_schema(version).refusals(document)}


def test_key_by_path() -> None:
    key = load_schema().key(("zero_optimization", "offload_optimizer", "device"))
    assert key is not None
    assert (key.types, key.default, key.choices) == (("str",), "none", ("none", "cpu", "nvme"))
    assert load_schema().key(("zero_optimisation",)) is None
    assert load_schema().key(()) is None


def test_children_are_the_keys_directly_below() -> None:
    assert set(load_schema().children(("zero_optimization", "offload_param"))) == {
        "device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory",
    }  # fmt: skip
    assert "train_batch_size" in load_schema().children(())
    assert "stage" not in load_schema().children(())


def test_parameters_depend_on_the_type() -> None:
    above = ("optimizer", "params")
    assert "torch_adam" in load_schema().children(above, "adamw")
    assert "torch_adam" not in load_schema().children(above, "Lion")
    key = load_schema().key((*above, "lr"), "Muon")
    assert key is not None and key.default == 0.02


def test_minor_version_stands_for_its_last_release() -> None:
    assert load_schema("0.18").version == "0.18.9"
    with pytest.raises(
        DsConfigError, match=r"DeepSpeed 0.12.6 has no schema here: take the nearest of 0.16.9"
    ):
        load_schema("0.12.6")


def test_clipping_became_the_default_in_0_19() -> None:
    assert [load_schema(v).keys[("gradient_clipping",)].default for v in VERSIONS] == [0.0, 0.0, 0.0, 1.0]


def test_refusals_name_key_and_reason() -> None:
    assert reasons(
        {"amp": {}, "zero_optimization": {"stage": 4, "reduce_bucket_size": "2e8", "stagee": 2}}
    ) == {
        "amp": "is removed: NVIDIA Apex AMP integration has been removed. Use DeepSpeed 'fp16', 'bf16', or "
        "'torch_autocast' instead. See https://github.com/deepspeedai/DeepSpeed/issues/8489.",
        "zero_optimization.stage": "must be one of 0, 1, 2, 3, not 4",
        "zero_optimization.reduce_bucket_size": 'must be a whole number, not "2e8"',
        "zero_optimization.stagee": "is not a key that DeepSpeed 0.19.8 knows here",
    }


def test_amp_was_still_taken_in_0_18() -> None:
    assert reasons({"amp": {"enabled": False}}, "0.18") == {}


def test_old_and_new_name_together_are_refused() -> None:
    assert list(reasons({"zero_optimization": {"cpu_offload": True, "offload_optimizer": {}}}).values()) == [
        "stands beside offload_optimizer, which is the same setting"
    ]
    both = {"stage3_prefetch_bucket_size": 1, "prefetch_bucket_size": 1}
    assert list(reasons({"zero_optimization": both})) == ["zero_optimization.prefetch_bucket_size"]


def test_bfloat16_is_not_looked_at_beside_bf16() -> None:
    assert reasons({"bf16": {"enabled": True}, "bfloat16": {"nonsense": 1}}) == {}
    assert list(reasons({"bfloat16": {"nonsense": 1}})) == ["bfloat16.nonsense"]


def test_auto_passes_where_deepspeeds_models_drop_it_and_nowhere_else() -> None:
    assert reasons({"zero_optimization": {"stage": "auto", "no_such_key": "auto"}}) == {}
    assert reasons({"zero_optimization": {"stage": "auto", "strict": True}}) != {}
    assert reasons({"train_batch_size": "auto"}) == {"train_batch_size": 'must be a number, not "auto"'}


def test_fits_is_stricter_than_the_parser() -> None:
    clipping = load_schema().keys[("gradient_clipping",)]
    assert refusal_of_value(clipping, "1.0") == ""  # DeepSpeed fails only when it first clips
    assert not clipping.fits("1.0") and clipping.fits(1) and clipping.fits(0.5)
    bucket = load_schema().keys[("zero_optimization", "reduce_bucket_size")]
    assert bucket.fits(2e8) and not bucket.fits(2.5) and not bucket.fits(True)


def test_a_key_refuses_types_that_json_does_not_have() -> None:
    with pytest.raises(ValueError, match="a.b has the type 'integer'"):
        Key(("a", "b"), ("integer",))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_file_is_consistent(version: str) -> None:
    schema = load_schema(version)
    assert schema.version == version
    for path, key in schema.keys.items():
        assert path[:-1] in schema.keys or len(path) == 1, f"{key.name} hangs in the air"
        assert key.check in CHECKS
        assert key.types or key.removed or key.name == "tensor_parallel.dtype", f"{key.name} takes nothing"
        for other in (key.alias_of, key.new_path):
            assert other is None or other in schema.keys, f"{key.name} points at {other}"
