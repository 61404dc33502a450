// Operators by type name that only training needs: fused optimisers, dropout, masked softmax.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/softmax.h>

#include "compute/fused/dropout.h"
#include "compute/fused/math.h"
#include "compute/opapi/acl_op.h"

namespace npu_sim {
namespace {

using at::Tensor;

struct Moments {
    Tensor first, second;
};

Moments moments(const AclOp& op, const Tensor& gradient, double beta1, double beta2) {
    return {wide(op.inputs[1]) * beta1 + gradient * (1 - beta1),
            wide(op.inputs[2]) * beta2 + gradient.square() * (1 - beta2)};
}

void put_state(const AclOp& op, const Tensor& parameter, const Moments& now) {
    put(op.outputs[0], parameter);
    put(op.outputs[1], now.first);
    put(op.outputs[2], now.second);
}

// Inputs: var, m, v, beta1^t, beta2^t, lr, beta1, beta2, epsilon, gradient. The powers are those of this step.
void adam(const AclOp& op) {
    const double power1 = op.input_number(3), power2 = op.input_number(4), rate = op.input_number(5);
    const double beta1 = op.input_number(6), beta2 = op.input_number(7), epsilon = op.input_number(8);
    const Tensor gradient = wide(op.inputs[9]);
    const Moments now = moments(op, gradient, beta1, beta2);
    const Tensor direction = op.flag("use_nesterov", false) ? now.first * beta1 + gradient * (1 - beta1) : now.first;
    const double step = rate * std::sqrt(1 - power2) / (1 - power1);
    put_state(op, wide(op.inputs[0]) - direction * step / (now.second.sqrt() + epsilon), now);
}

// Inputs: var, m, v, beta1^(t-1), beta2^(t-1), lr, decay, beta1, beta2, epsilon, gradient, largest v so far (amsgrad).
void adam_w(const AclOp& op) {
    const double rate = op.input_number(5), decay = op.input_number(6), epsilon = op.input_number(9);
    const double beta1 = op.input_number(7), beta2 = op.input_number(8);
    const double power1 = op.input_number(3) * beta1, power2 = op.input_number(4) * beta2;
    const Tensor gradient = op.flag("maximize", false) ? wide(op.inputs[10]).neg() : wide(op.inputs[10]);
    const Moments now = moments(op, gradient, beta1, beta2);
    Tensor scale = now.second;
    if (op.flag("amsgrad", false)) {
        scale = at::maximum(wide(op.inputs.at(11)), scale);
        put(op.inputs[11], scale);
    }
    const Tensor denominator = (scale / (1 - power2)).sqrt() + epsilon;
    put_state(op, wide(op.inputs[0]) * (1 - rate * decay) - now.first * (rate / (1 - power1)) / denominator, now);
}

// Inputs: shape, probability to keep, seed, its upper half, (0, offset).
void generate_mask(const AclOp& op) {
    const auto seed = static_cast<uint64_t>(op.input_integers(2).at(0));
    generate_bits(op.outputs[0], op.input_number(1), seed, static_cast<uint64_t>(op.input_integers(4).at(1)));
}

// Without a stateless seed: attributes seed and seed2.
void generate_byte_mask(const AclOp& op) {
    const auto seed = static_cast<uint64_t>(op.integer("seed", 0));
    const int64_t count = op.outputs[0].numel();
    const Tensor bits = at::empty({(count + 7) / 8}, at::kByte);
    generate_bits(bits, op.input_number(1), seed, static_cast<uint64_t>(op.integer("seed2", 0)));
    put(op.outputs[0], unpack_bits(bits, 0, count));
}

Tensor dropped(const Tensor& x, const Tensor& kept, double keep) {
    return keep == 0 ? wide(x) * 0 : wide(x) * kept.view(x.sizes()) / keep;
}

void apply_bit_mask(const AclOp& op) {
    const Tensor x = op.inputs[0];
    put(op.outputs[0], dropped(x, unpack_bits(op.inputs[1], 0, x.numel()), op.input_number(2)));
}

void apply_byte_mask(const AclOp& op) {
    const Tensor x = op.inputs[0];
    put(op.outputs[0], dropped(x, op.inputs[1].flatten().narrow(0, 0, x.numel()), op.input_number(2)));
}

// dropout(softmax(addend + alpha * x)). Inputs: addend, x, byte mask.
void scaled_softmax_dropout(const AclOp& op) {
    const Tensor sum = wide(op.inputs[0]) + wide(op.inputs[1]) * op.number("alpha", 1);
    const Tensor weights = at::softmax(sum, op.integers("axis").at(0));
    put(op.outputs[0], weights);
    const Tensor kept = op.inputs[2].flatten().narrow(0, 0, weights.numel());
    put(op.outputs[1], dropped(weights, kept, op.number("input_keep_prob", 1)));
}

void scaled_softmax_dropout_grad(const AclOp& op) {
    const Tensor weights = wide(op.inputs[2]);
    const Tensor kept = op.inputs[1].flatten().narrow(0, 0, weights.numel());
    const Tensor grad = dropped(op.inputs[0], kept, op.number("input_keep_prob", 1));
    const int64_t axis = op.integers("axes").at(0);
    put(op.outputs[0], at::_softmax_backward_data(grad, weights, axis, at::kFloat) * op.number("alpha", 1));
}

// The masked positions of (x, mask): CANN's `mask` is true where a score is left out.
constexpr double kMaskedScore = -10000;

Tensor left_out(const AclOp& op, const Tensor& mask, const Tensor& like) {
    if (!op.flag("fixed_triu_mask", false)) return mask.to(at::kBool).expand_as(like);
    return at::empty(like.sizes().slice(like.dim() - 2), at::kBool).fill_(true).triu(1).expand_as(like);
}

void masked_softmax(const AclOp& op) {
    const Tensor scores = wide(op.inputs[0]) * op.number("scale", 1);
    put(op.outputs[0], at::softmax(scores.masked_fill(left_out(op, op.inputs[1], scores), kMaskedScore), -1));
}

void masked_softmax_grad(const AclOp& op) {
    const Tensor weights = wide(op.inputs[1]);
    const Tensor grad = at::_softmax_backward_data(wide(op.inputs[0]), weights, -1, at::kFloat) * op.number("scale", 1);
    put(op.outputs[0], grad.masked_fill(left_out(op, op.inputs[2], weights), 0));
}

}  // namespace

void add_training_kernels(AclKernels& kernels) {
    kernels.insert({{"ApplyAdamD", adam},
                    {"ApplyAdamW", adam_w},
                    {"StatelessDropOutGenMask", generate_mask},
                    {"DropOutGenMaskV3", generate_byte_mask},
                    {"DropOutDoMask", apply_bit_mask},
                    {"DropOutDoMaskV3", apply_byte_mask},
                    {"AxpyWithSoftmaxAndDropOutDoMask", scaled_softmax_dropout},
                    {"DropoutWithMulsAndSoftmaxGrad", scaled_softmax_dropout_grad},
                    {"ScaledMaskedSoftmax", masked_softmax},
                    {"ScaledMaskedSoftmaxGrad", masked_softmax_grad}});
}

}  // namespace npu_sim
