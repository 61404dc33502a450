// Operators by type name that compute.
#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/where.h>

#include "compute/fused/math.h"
#include "compute/opapi/acl_op.h"

namespace npu_sim {
namespace {

using at::Tensor;

void swish(const AclOp& op) {
    const Tensor x = wide(op.inputs[0]);
    put(op.outputs[0], x * (x * op.number("scale", 1)).sigmoid());
}

void swish_grad(const AclOp& op) { put(op.outputs[0], at::silu_backward(wide(op.inputs[0]), wide(op.inputs[1]))); }

void mish(const AclOp& op) { put(op.outputs[0], at::mish(wide(op.inputs[0]))); }

void mish_grad(const AclOp& op) { put(op.outputs[0], at::mish_backward(wide(op.inputs[0]), wide(op.inputs[1]))); }

// (x, gamma, beta) -> (y, mean, rstd)
void layer_norm(const AclOp& op) {
    const Tensor x = op.inputs[0];
    const int64_t first = op.integer("begin_norm_axis", 0);
    const auto shape = x.sizes().slice(static_cast<size_t>(first < 0 ? first + x.dim() : first));
    const auto [y, mean, rstd] = at::native_layer_norm(wide(x), shape, wide(op.inputs[1]).view(shape),
                                                       wide(op.inputs[2]).view(shape), op.number("epsilon", 1e-5));
    put(op.outputs[0], y);
    if (op.outputs.size() < 3) return;
    put(op.outputs[1], mean);
    put(op.outputs[2], rstd);
}

void product(const AclOp& op, const char* first, const char* second) {
    const Tensor a = wide(op.inputs[0]), b = wide(op.inputs[1]);
    Tensor result = at::matmul(op.flag(first, false) ? a.transpose(-1, -2) : a,
                               op.flag(second, false) ? b.transpose(-1, -2) : b);
    if (op.inputs.size() > 2 && op.inputs[2].defined()) result = result + wide(op.inputs[2]);
    put(op.outputs[0], result);
}

void batch_product(const AclOp& op) { product(op, "adj_x1", "adj_x2"); }

void matrix_product(const AclOp& op) { product(op, "transpose_x1", "transpose_x2"); }

// Outputs are (indices, values).
void put_extremes(const AclOp& op, const std::tuple<Tensor, Tensor>& found) {
    put(op.outputs[0], std::get<1>(found));
    put(op.outputs[1], std::get<0>(found));
}

void maximum(const AclOp& op) {
    put_extremes(op, op.inputs[0].max(op.integer("dimension", 0), op.flag("keep_dims", false)));
}

void minimum(const AclOp& op) {
    put_extremes(op, op.inputs[0].min(op.integer("dimension", 0), op.flag("keep_dims", false)));
}

// The gradient of a maximum or minimum: values go to the places their indices name.
void scatter_at(const AclOp& op) {
    const int64_t dim = op.integer("dimension", 0);
    Tensor index = op.inputs[1].to(at::kLong), values = op.inputs[2];
    if (index.dim() < op.inputs[0].dim()) index = index.unsqueeze(dim);
    if (values.dim() < op.inputs[0].dim()) values = values.unsqueeze(dim);
    put(op.outputs[0], op.inputs[0].scatter(dim, index, values));
}

void sorted_values(const AclOp& op) {
    put(op.outputs[0], std::get<0>(op.inputs[0].sort(op.integer("axis", -1), op.flag("descending", false))));
}

// Blocks of 16 channels of two tensors, added: c1_len blocks from each one's offset.
void stride_add(const AclOp& op) {
    constexpr int64_t kBlock = 16;
    const int64_t channels = op.integer("c1_len", 1) * kBlock;
    put(op.outputs[0], op.inputs[0].narrow(1, op.integer("x1_c1_offset", 0) * kBlock, channels) +
                           op.inputs[1].narrow(1, op.integer("x2_c1_offset", 0) * kBlock, channels));
}

void one_hot(const AclOp& op) {
    const int64_t axis = op.integer("axis", -1);
    TORCH_CHECK(axis == -1, "OneHotD along axis ", axis, " is not simulated");
    const Tensor out = op.outputs[0];
    out.copy_(op.inputs[2].to(out.scalar_type()).expand_as(out));
    const Tensor index = op.inputs[0].to(at::kLong).unsqueeze(-1);
    const int64_t depth = out.size(-1);
    const Tensor inside = (index >= 0).logical_and(index < depth);
    const Tensor safe = index.clamp(0, depth - 1);
    const Tensor value = at::where(inside, op.inputs[1].to(out.scalar_type()), op.inputs[2].to(out.scalar_type()));
    out.scatter_(-1, safe, value.expand_as(index).contiguous());
}

// (logits, probabilities) -> (loss a row, gradient of its sum)
void soft_cross_entropy(const AclOp& op) {
    const Tensor log_probabilities = at::log_softmax(wide(op.inputs[0]), -1), labels = wide(op.inputs[1]);
    put(op.outputs[0], (log_probabilities * labels).sum(-1).neg());
    put(op.outputs[1], log_probabilities.exp() - labels);
}

}  // namespace

void add_math_kernels(AclKernels& kernels) {
    kernels.insert({{"Swish", swish},
                    {"SwishGrad", swish_grad},
                    {"Mish", mish},
                    {"MishGrad", mish_grad},
                    {"LayerNormV3", layer_norm},
                    {"BatchMatMul", batch_product},
                    {"MatMulV2", matrix_product},
                    {"ArgMaxWithValue", maximum},
                    {"ArgMinWithValue", minimum},
                    {"ArgMaxGrad", scatter_at},
                    {"SortV2", sorted_values},
                    {"StrideAdd", stride_add},
                    {"OneHotD", one_hot},
                    {"SoftmaxCrossEntropyWithLogits", soft_cross_entropy}});
}

}  // namespace npu_sim
