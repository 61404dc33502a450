// copy_: asynchronous where the card is.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include "compute/host_kernel.h"

namespace npu_sim {

// A non-blocking copy between pinned host memory and an NPU is a task of the current stream, and the host goes on. Such
// copies go to torch_npu's own kernel, which queues them and keeps the host memory from being reused. A copy inside
// one NPU joins the queue of a busy stream: ProcessGroupHCCL hands the parts of an all_gather out by copies behind the
// collective, and the caller of an asynchronous one must not be held. All others are the host's.
class CopyKernel final : public c10::OperatorKernel {
  public:
    explicit CopyKernel(const c10::OperatorHandle& op);
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  private:
    HostKernel by_host_;
    c10::SafeKernelFunction by_torch_npu_;
};

}  // namespace npu_sim
