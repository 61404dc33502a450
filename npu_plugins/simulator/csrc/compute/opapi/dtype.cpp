#include "compute/opapi/dtype.h"

#include <c10/util/Exception.h>

namespace npu_sim {

at::ScalarType torch_dtype(aclDataType dtype) {
    switch (dtype) {
        case ACL_FLOAT: return at::kFloat;
        case ACL_FLOAT16: return at::kHalf;
        case ACL_BF16: return at::kBFloat16;
        case ACL_DOUBLE: return at::kDouble;
        case ACL_INT8: return at::kChar;
        case ACL_UINT8: return at::kByte;
        case ACL_INT16: return at::kShort;
        case ACL_INT32: return at::kInt;
        case ACL_INT64: return at::kLong;
        case ACL_BOOL: return at::kBool;
        case ACL_COMPLEX64: return at::kComplexFloat;
        case ACL_COMPLEX128: return at::kComplexDouble;
        case ACL_UINT16: return at::kUInt16;
        case ACL_UINT32: return at::kUInt32;
        case ACL_UINT64: return at::kUInt64;
        case ACL_FLOAT8_E5M2: return at::kFloat8_e5m2;
        case ACL_FLOAT8_E4M3FN: return at::kFloat8_e4m3fn;
        case ACL_FLOAT8_E8M0: return at::kFloat8_e8m0fnu;
        default: TORCH_CHECK(false, "tensors of ACL data type ", static_cast<int>(dtype), " are not simulated");
    }
}

}  // namespace npu_sim
