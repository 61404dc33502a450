// Runs the operators that torch_npu launches by type name from inside its own C++.
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/from_blob.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "runtime/export.h"
#include "runtime/op.h"

namespace npu_sim {
namespace {

at::ScalarType torch_type(aclDataType type) {
    switch (type) {
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
        case ACL_UINT16: return at::kUInt16;
        case ACL_UINT32: return at::kUInt32;
        case ACL_UINT64: return at::kUInt64;
        case ACL_COMPLEX64: return at::kComplexFloat;
        case ACL_COMPLEX128: return at::kComplexDouble;
        default: TORCH_CHECK(false, "elements of ACL type ", static_cast<int>(type), " are not simulated.");
    }
}

// A host tensor over an operand. Constants live in the caller's memory, which may be gone when the task runs.
at::Tensor operand(const aclTensorDesc* desc, const aclDataBuffer* buffer) {
    const bool is_constant = !desc->constant.empty();
    void* memory = is_constant ? const_cast<char*>(desc->constant.data()) : buffer->data;
    const at::Tensor tensor = at::from_blob(memory, desc->shape, at::TensorOptions().dtype(torch_type(desc->dtype)));
    return is_constant || desc->on_host ? tensor.clone() : tensor;
}

using Operands = std::vector<at::Tensor>;
using Kernel = std::function<void(const Operands& in, const Operands& out)>;

void identity(const Operands& in, const Operands& out) { out[0].copy_(in[0].view(out[0].sizes())); }

void fill(const Operands& in, const Operands& out) { out[0].fill_(in[1].item()); }

// CANN gives (before, after) from the first dimension on, PyTorch from the last.
void pad(const Operands& in, const Operands& out) {
    const at::Tensor given = in[1].to(at::kLong).contiguous();
    const auto* ends = given.const_data_ptr<int64_t>();
    std::vector<int64_t> reversed;
    for (int64_t i = given.numel(); i >= 2; i -= 2) reversed.insert(reversed.end(), {ends[i - 2], ends[i - 1]});
    const at::Scalar value = in.size() > 2 ? in[2].item() : at::Scalar(0);
    out[0].copy_(at::constant_pad_nd(in[0], reversed, value));
}

const std::map<std::string, Kernel>& kernels() {
    static const auto* table =
        new std::map<std::string, Kernel>{
            {"Identity", identity}, {"Cast", identity}, {"Fill", fill}, {"Pad", pad}, {"PadV3", pad}};
    return *table;
}

aclError run_op(const OpCall& call) {
    const auto found = kernels().find(call.type);
    if (found == kernels().end()) return refuse(("operator " + call.type + " (aclopCompileAndExecute)").c_str());
    try {
        Operands in, out;
        for (size_t i = 0; i < call.inputs.size(); ++i) in.push_back(operand(call.input_descs[i], call.inputs[i]));
        for (size_t i = 0; i < call.outputs.size(); ++i) out.push_back(operand(call.output_descs[i], call.outputs[i]));
        return enqueue(call.stream, [kernel = found->second, type = call.type, in, out] {
            try {
                kernel(in, out);
                return ACL_SUCCESS;
            } catch (const c10::Error& refused) {
                return fail(ACL_ERROR_INVALID_PARAM, type + ": " + refused.msg());
            }
        });
    } catch (const c10::Error& refused) {
        return fail(ACL_ERROR_INVALID_PARAM, call.type + ": " + refused.msg());
    }
}

}  // namespace

void register_op_runner() { set_op_runner(run_op); }

}  // namespace npu_sim
