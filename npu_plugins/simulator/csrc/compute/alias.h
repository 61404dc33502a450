// The same memory seen as a device tensor (torch_npu's) and as a host tensor (what PyTorch's CPU kernels take).
#pragma once

#include <ATen/core/Tensor.h>

namespace npu_sim {

// A CPU tensor over the memory of NPU tensor `device`: same sizes, strides, offset and flags. It owns nothing and
// must not outlive `device`.
at::Tensor host_alias(const at::Tensor& device);

// The NPU tensor over the memory of `host`, a tensor a CPU kernel has just allocated: its memory came from the
// NPU's allocator (see output_allocator.h) and changes hands, or is copied if it did not.
at::Tensor adopt(at::Tensor host, c10::Device device);

// Brings an output argument in line after a kernel resized its alias.
void follow_resize(const at::Tensor& device, const at::Tensor& alias);

inline bool on_npu(const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

}  // namespace npu_sim
