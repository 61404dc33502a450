#pragma once

namespace npu_sim {

// Puts the NPU's in-place division over the host's. After the host kernels.
void register_integer_division();

}  // namespace npu_sim
