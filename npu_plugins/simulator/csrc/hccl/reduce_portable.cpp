// The reductions for any CPU of this architecture.
#include "hccl/reduce.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

#define HCCL_KERNELS portable
#include "hccl/reduce_kernels.h"

namespace npu_sim::hccl {

BlockReducer portable_reducer(HcclDataType type, HcclReduceOp op) { return portable::reducer(type, op); }

}  // namespace npu_sim::hccl
