// What the reference kernels share. They compute in float32, as a card's vector units do for 16-bit operands, and
// round once, when the result is copied into the output.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

namespace npu_sim {

inline at::Tensor wide(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// The sum over the dimensions along which `shape` was broadcast.
inline at::Tensor sum_to_shape(const at::Tensor& tensor, at::IntArrayRef shape) { return tensor.sum_to_size(shape); }

inline void put(const at::Tensor& output, const at::Tensor& value) {
    if (output.defined()) output.copy_(value.view_as(output));
}

}  // namespace npu_sim
