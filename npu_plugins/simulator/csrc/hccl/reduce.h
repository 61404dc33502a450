// Element-wise reductions on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hccl/hccl_types.h"

namespace npu_sim::hccl {

// Writes `op` over sources[0][i], …, sources[n-1][i] into every target[i], for i < count. Folds in the order
// of the sources and rounds at every step, as a card does, so that the bits do not depend on who computes. A
// target may be one of the sources; partial overlap is not allowed. can_reduce(type, op) must hold.
void reduce(HcclDataType type, HcclReduceOp op, const void* const* sources, uint32_t source_count,
            void* const* targets, uint32_t target_count, size_t count);

// One block of it, at most kBlockBytes, into memory that is none of the sources.
constexpr size_t kBlockBytes = 8192;
using BlockReducer = void (*)(const void* const* sources, uint32_t source_count, size_t first, size_t count,
                              void* block);

// The block reducer for a type and operator, compiled for any CPU of this architecture and, where the host has
// them, for AVX2 and F16C. Null when can_reduce() does not hold.
BlockReducer portable_reducer(HcclDataType type, HcclReduceOp op);
#if defined(__x86_64__)
BlockReducer avx2_reducer(HcclDataType type, HcclReduceOp op);
#endif

}  // namespace npu_sim::hccl
