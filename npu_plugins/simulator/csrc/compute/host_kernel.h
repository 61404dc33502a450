// One operator of the NPU, run by PyTorch's CPU kernel on aliases of the device tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <vector>

namespace npu_sim {

class HostKernel final : public c10::OperatorKernel {
  public:
    explicit HostKernel(const c10::OperatorHandle& op);
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  private:
    struct Call;
    void to_host(Call& call, torch::jit::Stack* stack) const;
    void from_host(Call& call, torch::jit::Stack* stack) const;
    void draw_from_npu(Call& call, torch::jit::Stack* stack) const;

    size_t argument_count_;
    std::vector<int> returns_argument_;  // per return: the mutated argument it is, or -1
    std::vector<bool> is_written_;       // per argument
    int generator_argument_ = -1;
    bool draws_ = false;
    bool takes_host_tensors_;  // mixes with CPU tensors of any size, as the real operator does
    bool may_refuse_unsafe_ = true;
    int device_argument_ = -1;
};

// Runs the operator's composite kernel on the NPU tensors themselves: it calls other operators, which come back here.
class CompositeKernel final : public c10::OperatorKernel {
  public:
    explicit CompositeKernel(c10::DispatchKey key) : key_(key) {}
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
        op.getComputedKernelForDispatchKey(key_).callBoxed(op, keys, stack);
    }

  private:
    c10::DispatchKey key_;
};

}  // namespace npu_sim
