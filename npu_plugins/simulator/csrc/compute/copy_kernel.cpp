#include "compute/copy_kernel.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "compute/alias.h"
#include "compute/opapi/operator.h"
#include "torch_npu/csrc/core/npu/NPUCachingAllocator.h"
#include "torch_npu/csrc/core/npu/NPURecovery.h"
#include "torch_npu/csrc/core/npu/NPUStream.h"

namespace npu_sim {
namespace {

// Whether the bytes can be moved as they are.
bool is_plain(const at::Tensor& target, const at::Tensor& source) {
    return target.dtype() == source.dtype() && target.sizes() == source.sizes() && target.numel() > 0 &&
           target.is_contiguous() && source.is_contiguous() && target.is_neg() == source.is_neg() &&
           target.is_conj() == source.is_conj() && !source._is_zerotensor();
}

bool is_asynchronous(const at::Tensor& target, const at::Tensor& source) {
    if (target.is_cpu() == source.is_cpu() || !is_plain(target, source)) return false;
    return (target.is_cpu() ? target : source).is_pinned();
}

// A copy inside one NPU becomes a task of a busy stream; false if nothing keeps it from being made at once.
bool queue_behind_busy_stream(const at::Tensor& target, const at::Tensor& source) {
    if (!on_npu(target) || !on_npu(source) || target.device() != source.device()) return false;
    if (target.layout() != c10::kStrided || source.layout() != c10::kStrided) return false;
    c10::DeviceGuard device_guard(target.device());  // asking for its stream must not open the current NPU
    aclrtStream stream = c10_npu::getCurrentNPUStream(target.device().index()).stream();
    if (is_idle(stream)) return false;
    // Views of the same memory: it stays allocated for what the stream was given before it is freed.
    const auto copy = [to = host_alias(target), from = host_alias(source).expand(target.sizes())] { to.copy_(from); };
    const aclError failed = launch("aten::copy_", copy, stream);
    TORCH_CHECK(failed == ACL_SUCCESS, "NPU error, error code is ", failed, ": a copy could not be queued.");
    return true;
}

// As torch_npu's own copy: what is read must be safe, what is written over becomes so.
void check_and_make_safe(const at::Tensor& target, const at::Tensor& source) {
    c10_npu::check_npu_tensor_is_safe(source);
    if (on_npu(target)) c10_npu::NPUCachingAllocator::updateBlockToSafe(target.storage().data_ptr());
}

}  // namespace

CopyKernel::CopyKernel(const c10::OperatorHandle& op)
    : by_host_(op), by_torch_npu_(op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {}

void CopyKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, 3);
    const bool non_blocking = arguments[2].toBool();
    if (c10_npu::get_npu_data_unsafe_flag()) check_and_make_safe(arguments[0].toTensor(), arguments[1].toTensor());
    if (non_blocking && is_asynchronous(arguments[0].toTensor(), arguments[1].toTensor()))
        by_torch_npu_.callBoxed(op, keys, stack);
    else if (queue_behind_busy_stream(arguments[0].toTensor(), arguments[1].toTensor()))
        torch::jit::drop(*stack, 2);  // returns its first argument
    else
        by_host_(op, keys, stack);
}

}  // namespace npu_sim
