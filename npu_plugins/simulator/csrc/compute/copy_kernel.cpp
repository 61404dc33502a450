#include "compute/copy_kernel.h"

#include "compute/alias.h"
#include "compute/opapi/operator.h"
#include "torch_npu/csrc/core/npu/NPUStream.h"

namespace npu_sim {
namespace {

constexpr size_t kArguments = 3;  // self, source, non_blocking

// On a card, too, only copies inside one NPU and non-blocking ones from and to pinned memory leave the host free.
bool may_wait_in_queue(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    if (to.layout() != c10::kStrided || from.layout() != c10::kStrided) return false;
    if (on_npu(to) && on_npu(from)) return to.device() == from.device();
    const at::Tensor& host = on_npu(to) ? from : to;
    return non_blocking && host.is_cpu() && host.is_pinned();
}

// NPU memory stays allocated for what the stream was given before it is freed; host memory has to be held.
at::Tensor for_task(const at::Tensor& tensor) { return on_npu(tensor) ? host_alias(tensor) : tensor.detach(); }

// True once the copy is queued; false if it is to be made at once.
bool queue_behind_busy_stream(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    const c10::Device device = on_npu(to) ? to.device() : from.device();
    aclrtStream stream = c10_npu::getCurrentNPUStream(device.index()).stream();
    if (is_idle(stream) || !may_wait_in_queue(to, from, non_blocking)) return false;
    const at::Tensor source = for_task(from).expand(to.sizes());
    const auto copy = [target = for_task(to), source] { target.copy_(source); };
    const aclError failed = launch("aten::copy_", copy, stream);
    TORCH_CHECK(failed == ACL_SUCCESS, "NPU error, error code is ", failed, ": a copy could not be queued.");
    return true;
}

}  // namespace

void CopyKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto first = stack->end() - kArguments;
    if (queue_behind_busy_stream(first[0].toTensor(), first[1].toTensor(), first[2].toBool())) {
        stack->resize(stack->size() - kArguments + 1);  // returns self
        return;
    }
    on_host_(op, keys, stack);
}

}  // namespace npu_sim
