// The reductions for x86 CPUs with AVX2 and F16C. Every header comes before the target changes: an inline
// function of theirs compiled here for AVX2 could be the one copy that the linker keeps for all files.
#include "hccl/reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#define HCCL_KERNELS avx2
#include "hccl/reduce_kernels.h"
#pragma GCC pop_options

namespace npu_sim::hccl {

BlockReducer avx2_reducer(HcclDataType type, HcclReduceOp op) { return avx2::reducer(type, op); }

}  // namespace npu_sim::hccl
#endif
