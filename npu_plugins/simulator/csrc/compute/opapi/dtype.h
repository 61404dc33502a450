// ACL's data types in PyTorch's terms.
#pragma once

#include <c10/core/ScalarType.h>

#include "acl/acl_base.h"

namespace npu_sim {

// Throws for a type PyTorch's CPU kernels do not have (int4, hifloat8).
at::ScalarType torch_dtype(aclDataType dtype);

}  // namespace npu_sim
