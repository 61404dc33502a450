#include "compute/copy_kernel.h"

#include <ATen/core/Tensor.h>

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

}  // namespace

CopyKernel::CopyKernel(const c10::OperatorHandle& op)
    : by_host_(op), by_torch_npu_(op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {}

void CopyKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, 3);
    const bool non_blocking = arguments[2].toBool();
    if (non_blocking && is_asynchronous(arguments[0].toTensor(), arguments[1].toTensor()))
        by_torch_npu_.callBoxed(op, keys, stack);
    else
        by_host_(op, keys, stack);
}

}  // namespace npu_sim
