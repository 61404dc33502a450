// Operators that torch_npu runs by type name, past PyTorch's dispatcher: descriptors, attributes, and the hand-over
// to the compute library, which knows how to run the few types that occur.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "acl/acl_op.h"
#include "runtime/sim.h"

struct aclTensorDesc {
    aclDataType dtype;
    aclFormat format;
    std::vector<int64_t> shape;
    std::string name;
    bool on_host = false;             // a constant input that lies in host memory
    std::vector<char> constant;       // value given with aclSetTensorConst
};

struct aclDataBuffer {
    void* data;
    size_t bytes;
};

struct aclopAttr {
    using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<bool>, std::vector<std::vector<int64_t>>, aclDataType>;
    std::map<std::string, Value> values;
};

namespace npu_sim {

struct OpCall {
    std::string type;
    std::vector<const aclTensorDesc*> input_descs;
    std::vector<const aclDataBuffer*> inputs;
    std::vector<const aclTensorDesc*> output_descs;
    std::vector<aclDataBuffer*> outputs;
    const aclopAttr* attributes;
    aclrtStream stream;
};

// Runs the call or returns an error through fail(). Set by the compute library when it is loaded.
using OpRunner = aclError (*)(const OpCall&);
NPU_SIM_EXPORT void set_op_runner(OpRunner runner);

}  // namespace npu_sim
