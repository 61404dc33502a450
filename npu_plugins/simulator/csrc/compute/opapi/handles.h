// The handles of CANN's aclnn interface. torch_npu makes them from its tensors, passes them to an aclnn function and
// destroys them; what they hold here is a host tensor over the same device memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <string>
#include <vector>

#include "acl/acl_base.h"

struct aclTensor {
    at::Tensor host;      // undefined if the type has no host kernels; `problem` says why
    std::string problem;
};
struct aclScalar {
    c10::Scalar value;
};
struct aclIntArray {
    std::vector<int64_t> values;
};
struct aclFloatArray {
    std::vector<double> values;
};
struct aclBoolArray {
    std::vector<bool> values;
};
struct aclTensorList {
    std::vector<const aclTensor*> tensors;  // owned
};
struct aclScalarList {
    std::vector<const aclScalar*> scalars;  // owned
};

namespace npu_sim {

// A host tensor over memory that somebody else owns.
at::Tensor host_view(void* memory, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::ScalarType dtype);

}  // namespace npu_sim
