// Copies inside one NPU join the stream's queue where the stream is busy, instead of holding up the host.
#pragma once

#include "compute/host_kernel.h"

namespace npu_sim {

// aten::copy_. ProcessGroupHCCL hands the parts of an all_gather out by copies on its own stream right behind the
// collective; a host kernel there would block the caller of an asynchronous collective until all ranks have come.
class CopyKernel final : public c10::OperatorKernel {
  public:
    explicit CopyKernel(const c10::OperatorHandle& op) : on_host_(op) {}
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  private:
    HostKernel on_host_;
};

}  // namespace npu_sim
