// Operators by type name that move, convert and rearrange elements.
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include "compute/fused/math.h"
#include "compute/opapi/acl_op.h"

namespace npu_sim {
namespace {

using at::Tensor;

void copy(const AclOp& op) { op.outputs[0].copy_(op.inputs[0].view_as(op.outputs[0])); }

void convert(const AclOp& op) { op.outputs[0].copy_(op.inputs[0]); }

// Input 0 through the sizes, strides and offset in the next three inputs.
Tensor strided(const AclOp& op, size_t first) {
    const Ints sizes = op.input_integers(first + 1), strides = op.input_integers(first + 2);
    return op.inputs[first].flatten().as_strided(sizes, strides, op.input_integers(first + 3).at(0));
}

void as_strided(const AclOp& op) { put(op.outputs[0], strided(op, 0)); }

// Into the elements of input 0 that its sizes, strides and offset name. Output 0 is the same memory.
void view_copy(const AclOp& op) { strided(op, 0).copy_(strided(op, 4)); }

void concatenate(const AclOp& op) {
    Tensors parts;
    for (const Tensor& input : op.inputs)
        if (input.defined() && input.scalar_type() == op.outputs[0].scalar_type()) parts.push_back(input);
    put(op.outputs[0], at::cat(parts, op.integer("concat_dim", 0)));
}

void transpose(const AclOp& op) { put(op.outputs[0], op.inputs[0].permute(op.input_integers(1))); }

void broadcast(const AclOp& op) { put(op.outputs[0], op.inputs[0].expand(op.input_integers(1))); }

void slice(const AclOp& op) {
    Tensor part = op.inputs[0];
    const Ints begin = op.input_integers(1), size = op.input_integers(2);
    for (size_t dim = 0; dim < begin.size(); ++dim) {
        const auto d = static_cast<int64_t>(dim);
        part = part.narrow(d, begin[dim], size[dim] < 0 ? part.size(d) - begin[dim] : size[dim]);
    }
    put(op.outputs[0], part);
}

bool has_bit(int64_t mask, size_t bit) { return (mask >> bit & 1) != 0; }

void strided_slice(const AclOp& op) {
    for (const char* mask : {"ellipsis_mask", "new_axis_mask", "shrink_axis_mask"})
        TORCH_CHECK(op.integer(mask, 0) == 0, mask, " is not simulated");
    Tensor part = op.inputs[0];
    const Ints begin = op.input_integers(1), end = op.input_integers(2), step = op.input_integers(3);
    for (size_t dim = 0; dim < begin.size(); ++dim) {
        const auto d = static_cast<int64_t>(dim);
        const int64_t from = has_bit(op.integer("begin_mask", 0), dim) ? 0 : begin[dim];
        const int64_t to = has_bit(op.integer("end_mask", 0), dim) ? part.size(d) : end[dim];
        part = part.slice(d, from, to, step[dim]);
    }
    put(op.outputs[0], part);
}

void fill(const AclOp& op) { op.outputs[0].fill_(op.inputs[1].item()); }

// CANN gives (before, after) from the first dimension on, PyTorch from the last.
void pad(const AclOp& op) {
    const Ints given = op.input_integers(1);
    Ints reversed;
    for (size_t i = given.size(); i >= 2; i -= 2) {
        reversed.push_back(given[i - 2]);
        reversed.push_back(given[i - 1]);
    }
    const c10::Scalar value = op.inputs.size() > 2 ? op.inputs[2].item() : c10::Scalar(0);
    put(op.outputs[0], at::constant_pad_nd(op.inputs[0], reversed, value));
}

// [transpose and reshape] or [reshape and transpose] in one.
void confusion_transpose(const AclOp& op) {
    const Ints perm = op.integers("perm"), shape = op.integers("shape");
    put(op.outputs[0], op.flag("transpose_first", true) ? op.inputs[0].permute(perm).reshape(shape)
                                                        : op.inputs[0].reshape(shape).permute(perm));
}

void confuse(const Tensor& x, const Ints& perm, const Ints& shape, bool transpose_first, const Tensor& out) {
    put(out, transpose_first ? x.permute(perm).reshape(shape) : x.reshape(shape).permute(perm));
}

void cast(const Tensor& x, aclDataType, const Tensor& out) { out.copy_(x); }

void constant_pad(const Tensor& x, const Ints& padding, const c10::Scalar& value, const Tensor& out) {
    put(out, at::constant_pad_nd(x, padding, value));
}

void inplace_copy(const Tensor& to, const Tensor& from) { to.copy_(from); }

}  // namespace

void add_movement_kernels(AclKernels& kernels) {
    kernels.insert({{"Identity", copy},
                    {"TensorMove", copy},
                    {"Cast", convert},
                    {"AsStrided", as_strided},
                    {"ViewCopy", view_copy},
                    {"ConcatD", concatenate},
                    {"Transpose", transpose},
                    {"BroadcastTo", broadcast},
                    {"Slice", slice},
                    {"StridedSlice", strided_slice},
                    {"Fill", fill},
                    {"Pad", pad},
                    {"PadV3", pad},
                    {"ConfusionTransposeD", confusion_transpose}});
}

NPU_SIM_ACLNN(aclnnConfusionTranspose,
              (const aclTensor* x, const aclIntArray* perm, const aclIntArray* shape, bool transpose_first,
               const aclTensor* out),
              confuse, x, perm, shape, transpose_first, out)
NPU_SIM_ACLNN(aclnnCast, (const aclTensor* x, aclDataType dtype, const aclTensor* out), cast, x, dtype, out)
NPU_SIM_ACLNN(aclnnConstantPadNd,
              (const aclTensor* x, const aclIntArray* padding, const aclScalar* value, const aclTensor* out),
              constant_pad, x, padding, value, out)
NPU_SIM_ACLNN(aclnnInplaceCopy, (const aclTensor* to, const aclTensor* from), inplace_copy, to, from)

}  // namespace npu_sim
