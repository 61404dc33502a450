#include "hccl/reduce.h"

#include <algorithm>
#include <cstring>

#include "hccl/types.h"

namespace npu_sim::hccl {
namespace {

BlockReducer best_reducer(HcclDataType type, HcclReduceOp op) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2_reducer(type, op);
#endif
    return portable_reducer(type, op);
}

}  // namespace

void reduce(HcclDataType type, HcclReduceOp op, const void* const* sources, uint32_t source_count,
            void* const* targets, uint32_t target_count, size_t count) {
    const BlockReducer fold = best_reducer(type, op);
    const size_t bytes = element_bytes(type);
    const size_t step = kBlockBytes / bytes;
    alignas(64) char block[kBlockBytes];
    for (size_t first = 0; first < count; first += step) {
        const size_t part = std::min(step, count - first);
        fold(sources, source_count, first, part, block);
        for (uint32_t target = 0; target < target_count; ++target)
            std::memcpy(static_cast<char*>(targets[target]) + first * bytes, block, part * bytes);
    }
}

}  // namespace npu_sim::hccl
