// Dropout masks of CANN: one bit an element, set where it is kept, padded to 16 bytes.
#pragma once

#include <ATen/core/Tensor.h>

namespace npu_sim {

// Fills `bits` (uint8) with bits that are set with probability `keep`, a function of seed and offset alone.
void generate_bits(const at::Tensor& bits, double keep, uint64_t seed, uint64_t offset);

// The first `count` bits as a uint8 tensor of zeros and ones.
at::Tensor unpack_bits(const at::Tensor& bits, int64_t first, int64_t count);

}  // namespace npu_sim
