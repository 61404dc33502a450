// Batch norm over several NPUs: per-channel sums, their combination, and the elementwise parts.
#include <ATen/TensorOperators.h>

#include "compute/fused/math.h"
#include "compute/opapi/operator.h"

namespace npu_sim {
namespace {

using at::Tensor;

// All dimensions but that of the channels.
Ints other_dims(const Tensor& x) {
    Ints dims{0};
    for (int64_t i = 2; i < x.dim(); ++i) dims.push_back(i);
    return dims;
}

// A value per channel, broadcastable to `x`.
Tensor by_channel(const Tensor& values, const Tensor& x) {
    Ints shape(static_cast<size_t>(x.dim()), 1);
    shape[1] = -1;
    return wide(values).view(shape);
}

void sums(const Tensor& x, const Tensor& sum, const Tensor& square_sum) {
    put(sum, wide(x).sum(other_dims(x)));
    put(square_sum, wide(x).square().sum(other_dims(x)));
}

void update_running(const Tensor& running, const Tensor& batch, double momentum) {
    if (running.defined()) running.copy_(wide(running) * (1 - momentum) + batch * momentum);
}

// `sum` and `square_sum` have a row for each NPU, `counts` its number of values a channel.
void gather(const Tensor& sum, const Tensor& square_sum, const Tensor& counts, const Tensor& running_mean,
            const Tensor& running_var, double momentum, double epsilon, const Tensor& mean, const Tensor& inverse) {
    const double count = counts.sum().item().toDouble();
    const Tensor average = wide(sum).sum(0) / count;
    const Tensor variance = wide(square_sum).sum(0) / count - average.square();
    put(mean, average);
    put(inverse, (variance + epsilon).rsqrt());
    update_running(running_mean, average, momentum);
    update_running(running_var, variance * (count / (count - 1)), momentum);
}

void normalise(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& inverse,
               double, const Tensor& out) {
    Tensor value = (wide(x) - by_channel(mean, x)) * by_channel(inverse, x);
    if (weight.defined()) value = value * by_channel(weight, x);
    put(out, bias.defined() ? value + by_channel(bias, x) : value);
}

void reduce_grad(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inverse, const Tensor&, bool,
                 bool, bool, const Tensor& sum_dy, const Tensor& sum_dy_centred, const Tensor& dweight,
                 const Tensor& dbias) {
    const Tensor total = wide(dy).sum(other_dims(x));
    const Tensor centred = (wide(dy) * (wide(x) - by_channel(mean, x))).sum(other_dims(x));
    put(sum_dy, total);
    put(sum_dy_centred, centred);
    put(dweight, centred * wide(inverse));
    put(dbias, total);
}

void normalise_grad(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inverse, const Tensor& weight,
                    const Tensor& sum_dy, const Tensor& sum_dy_centred, const Tensor& counts, const Tensor& dx) {
    const double count = counts.sum().item().toDouble();
    const Tensor scale = by_channel(inverse, x);
    const Tensor projected = (wide(x) - by_channel(mean, x)) * scale.square() * by_channel(sum_dy_centred, x) / count;
    const Tensor centred = (wide(dy) - by_channel(sum_dy, x) / count - projected) * scale;
    put(dx, weight.defined() ? centred * by_channel(weight, x) : centred);
}

}  // namespace

NPU_SIM_ACLNN(aclnnBatchNormReduce, (const aclTensor* x, const aclTensor* sum, const aclTensor* square_sum), sums, x,
              sum, square_sum)
NPU_SIM_ACLNN(aclnnSyncBatchNormGatherStats,
              (const aclTensor* sum, const aclTensor* square_sum, const aclTensor* counts,
               const aclTensor* running_mean, const aclTensor* running_var, float momentum, float epsilon,
               const aclTensor* mean, const aclTensor* inverse),
              gather, sum, square_sum, counts, running_mean, running_var, momentum, epsilon, mean, inverse)
NPU_SIM_ACLNN(aclnnBatchNormElemt,
              (const aclTensor* x, const aclTensor* weight, const aclTensor* bias, const aclTensor* mean,
               const aclTensor* inverse, double epsilon, const aclTensor* out),
              normalise, x, weight, bias, mean, inverse, epsilon, out)
NPU_SIM_ACLNN(aclnnBatchNormReduceBackward,
              (const aclTensor* dy, const aclTensor* x, const aclTensor* mean, const aclTensor* inverse,
               const aclTensor* weight, bool wants_input, bool wants_weight, bool wants_bias, const aclTensor* sum_dy,
               const aclTensor* sum_dy_centred, const aclTensor* dweight, const aclTensor* dbias),
              reduce_grad, dy, x, mean, inverse, weight, wants_input, wants_weight, wants_bias, sum_dy, sum_dy_centred,
              dweight, dbias)
NPU_SIM_ACLNN(aclnnBatchNormElemtBackward,
              (const aclTensor* dy, const aclTensor* x, const aclTensor* mean, const aclTensor* inverse,
               const aclTensor* weight, const aclTensor* sum_dy, const aclTensor* sum_dy_centred,
               const aclTensor* counts, const aclTensor* dx),
              normalise_grad, dy, x, mean, inverse, weight, sum_dy, sum_dy_centred, counts, dx)

}  // namespace npu_sim
