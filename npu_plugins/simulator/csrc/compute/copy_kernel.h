// copy_ between host and NPU: asynchronous where the card is.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include "compute/host_kernel.h"

namespace npu_sim {

// A non-blocking copy between pinned host memory and an NPU is a task of the current stream, and the host goes on. Such
// copies go to torch_npu's own kernel, which queues them and keeps the host memory from being reused; all others, with
// their conversions and strides, are the host's.
class CopyKernel final : public c10::OperatorKernel {
  public:
    explicit CopyKernel(const c10::OperatorHandle& op);
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  private:
    HostKernel by_host_;
    c10::SafeKernelFunction by_torch_npu_;
};

}  // namespace npu_sim
