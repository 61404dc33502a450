// Operators that torch_npu launches by type name (aclopCompileAndExecute) rather than through an aclnn function.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "compute/opapi/operator.h"
#include "runtime/op.h"

namespace npu_sim {

// One launch: host tensors over the operands (an absent optional input is undefined), and the attributes.
struct AclOp {
    Tensors inputs, outputs;
    std::map<std::string, aclopAttr::Value> attributes;

    double number(const std::string& name, double otherwise) const;
    int64_t integer(const std::string& name, int64_t otherwise) const;
    bool flag(const std::string& name, bool otherwise) const { return integer(name, otherwise) != 0; }
    Ints integers(const std::string& name) const;

    // The values of an input that carries a shape, a permutation or a scalar.
    Ints input_integers(size_t index) const;
    double input_number(size_t index) const;
};

using AclKernel = std::function<void(const AclOp&)>;
using AclKernels = std::map<std::string, AclKernel>;

// Each adds the operators of its file.
void add_movement_kernels(AclKernels& kernels);
void add_math_kernels(AclKernels& kernels);
void add_training_kernels(AclKernels& kernels);

}  // namespace npu_sim
