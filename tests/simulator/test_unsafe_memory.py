"""Memory that a fault of the NPU made unsafe (torch_npu.npu._recovery) is refused until written over."""

from __future__ import annotations

import pytest
import torch

from tests.harness.fixtures import on_ranks

pytestmark = pytest.mark.npu


@on_ranks(1, backend=None)
def test_unsafe_tensors_are_refused_and_a_copy_makes_them_safe() -> None:
    from torch_npu.npu._recovery import (
        check_npu_tensor_is_safe,
        mark_all_npu_tensor_unsafe,
        set_npu_tensor_unsafe_check_flag,
    )

    spoilt, other = (torch.ones(255, 255, device="npu") for _ in range(2))
    set_npu_tensor_unsafe_check_flag(True)
    mark_all_npu_tensor_unsafe(0)
    for compute in (lambda: spoilt + 1, lambda: torch.cat([spoilt, other]), lambda: other.copy_(spoilt)):
        with pytest.raises(RuntimeError, match="There is unsafe data in the input tensor"):
            compute()
    spoilt.copy_(torch.zeros(255, 255))
    assert check_npu_tensor_is_safe(spoilt)
    assert (spoilt + 1).sum().item() == 255 * 255
    assert not check_npu_tensor_is_safe(other)
