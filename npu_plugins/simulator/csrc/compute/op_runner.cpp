// Runs the operators that torch_npu launches by type name from inside its own C++.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "compute/opapi/acl_op.h"
#include "compute/opapi/dtype.h"

namespace npu_sim {

double AclOp::number(const std::string& name, double otherwise) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return otherwise;
    if (const auto* value = std::get_if<double>(&found->second)) return *value;
    return static_cast<double>(integer(name, 0));
}

int64_t AclOp::integer(const std::string& name, int64_t otherwise) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return otherwise;
    if (const auto* value = std::get_if<bool>(&found->second)) return *value;
    if (const auto* value = std::get_if<aclDataType>(&found->second)) return *value;
    return std::get<int64_t>(found->second);
}

Ints AclOp::integers(const std::string& name) const {
    const auto found = attributes.find(name);
    return found == attributes.end() ? Ints() : std::get<Ints>(found->second);
}

Ints AclOp::input_integers(size_t index) const {
    const at::Tensor values = inputs.at(index).to(at::kLong).contiguous();
    const auto* first = values.const_data_ptr<int64_t>();
    return {first, first + values.numel()};
}

double AclOp::input_number(size_t index) const { return inputs.at(index).item().toDouble(); }

namespace {

const AclKernels& kernels() {
    static const auto* table = [] {
        auto* filled = new AclKernels;
        add_movement_kernels(*filled);
        add_math_kernels(*filled);
        add_training_kernels(*filled);
        return filled;
    }();
    return *table;
}

bool has_no_elements(const Ints& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

// A dense host tensor over an operand. Constants in host memory may be gone when the task runs: they are copied.
at::Tensor operand(const aclTensorDesc* desc, const aclDataBuffer* buffer) {
    void* memory = buffer ? buffer->data : nullptr;
    if (!desc->constant.empty()) memory = const_cast<char*>(desc->constant.data());
    if (desc->dtype == ACL_DT_UNDEFINED) return {};
    const auto options = at::TensorOptions().dtype(torch_dtype(desc->dtype)).device(at::kCPU);
    if (has_no_elements(desc->shape)) return at::empty(desc->shape, options);  // has no memory, and is an operand
    if (!memory) return {};
    const at::Tensor tensor = at::from_blob(memory, desc->shape, options);
    return desc->on_host || !desc->constant.empty() ? tensor.clone() : tensor;
}

// Formats whose elements lie in the order of the dims. The chip's private ones (FRACTAL_NZ, NC1HWC0, ...) do not.
bool is_plain(aclFormat format) {
    switch (format) {
        case ACL_FORMAT_UNDEFINED:
        case ACL_FORMAT_NCHW:
        case ACL_FORMAT_NHWC:
        case ACL_FORMAT_ND:
        case ACL_FORMAT_NC:
        case ACL_FORMAT_NCL:
        case ACL_FORMAT_NDHWC:
        case ACL_FORMAT_NCDHW: return true;
        default: return false;
    }
}

// The first private format among the operands, if any.
std::optional<aclFormat> private_format(const OpCall& call) {
    for (const auto* descs : {&call.input_descs, &call.output_descs})
        for (const aclTensorDesc* desc : *descs)
            if (!is_plain(desc->format)) return desc->format;
    return std::nullopt;
}

AclOp gather(const OpCall& call) {
    AclOp op;
    for (size_t i = 0; i < call.inputs.size(); ++i) op.inputs.push_back(operand(call.input_descs[i], call.inputs[i]));
    for (size_t i = 0; i < call.outputs.size(); ++i)
        op.outputs.push_back(operand(call.output_descs[i], call.outputs[i]));
    if (call.attributes) op.attributes = call.attributes->values;
    return op;
}

// torch_npu calls from its task queue, which drops all that follows a failure without a word: the stream says it.
aclError end_stream(const OpCall& call, aclError code) {
    enqueue(call.stream, [code] { return code; });
    return code;
}

aclError run_op(const OpCall& call) {
    const auto found = kernels().find(call.type);
    if (found == kernels().end())
        return end_stream(call, refuse(("operator " + call.type + " (aclopCompileAndExecute)").c_str()));
    if (const auto format = private_format(call))
        return end_stream(call, refuse(("storage format " + std::to_string(*format) + ", here of " + call.type + ",").c_str()));
    try {
        return launch(call.type.c_str(), [kernel = found->second, op = gather(call)] { kernel(op); }, call.stream);
    } catch (const c10::Error& refused) {
        return end_stream(call, fail(ACL_ERROR_INVALID_PARAM, call.type + ": " + refused.msg()));
    }
}

}  // namespace

void register_op_runner() { set_op_runner(run_op); }

}  // namespace npu_sim
