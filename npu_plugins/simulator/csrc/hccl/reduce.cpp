#include "hccl/reduce.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "hccl/types.h"

namespace npu_sim::hccl {
namespace {

// Results larger than this would only push other data out of the caches.
constexpr size_t kStreamedBytes = 4u << 20;

BlockReducer best_reducer(HcclDataType type, HcclReduceOp op) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2_reducer(type, op);
#endif
    return portable_reducer(type, op);
}

// Copies past the caches: the old contents of `to` are then not read first.
void stream_copy(char* to, const char* from, size_t bytes) {
#if defined(__x86_64__)
    const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % sizeof(__m128i));
    std::memcpy(to, from, head);
    size_t done = head;
    for (; done + sizeof(__m128i) <= bytes; done += sizeof(__m128i))
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
    std::memcpy(to + done, from + done, bytes - done);
    _mm_sfence();  // the barrier that follows orders ordinary stores only
#else
    std::memcpy(to, from, bytes);
#endif
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
        for (uint32_t target = 0; target < target_count; ++target) {
            char* to = static_cast<char*>(targets[target]) + first * bytes;
            const bool is_cached = std::find(sources, sources + source_count, targets[target]) != sources + source_count;
            if (is_cached || count * bytes < kStreamedBytes)
                std::memcpy(to, block, part * bytes);
            else
                stream_copy(to, block, part * bytes);
        }
    }
}

}  // namespace npu_sim::hccl
