// RMS norm and its relatives, layer norm, deep norm, group norm with SiLU.
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include "compute/fused/math.h"
#include "compute/opapi/operator.h"

namespace npu_sim {
namespace {

using at::Tensor;

// The trailing dimensions that `gamma` spans.
Ints normalized_dims(const Tensor& gamma) {
    Ints dims;
    for (int64_t i = gamma.dim(); i > 0; --i) dims.push_back(-i);
    return dims;
}

Tensor inverse_rms(const Tensor& x, const Tensor& gamma, double epsilon) {
    return x.square().mean(normalized_dims(gamma), /*keepdim=*/true).add(epsilon).rsqrt();
}

void rms_norm(const Tensor& x, const Tensor& gamma, double epsilon, const Tensor& y, const Tensor& rstd) {
    const Tensor input = wide(x);
    const Tensor inverse = inverse_rms(input, gamma, epsilon);
    put(y, input * inverse * wide(gamma));
    put(rstd, inverse);
}

// Gemma's weight is stored as its difference from one.
void gemma_rms_norm(const Tensor& x, const Tensor& gamma, double epsilon, const Tensor& y, const Tensor& rstd) {
    rms_norm(x, wide(gamma) + 1, epsilon, y, rstd);
}

void rms_norm_grad(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& gamma, const Tensor& dx,
                   const Tensor& dgamma) {
    const Tensor inverse = wide(rstd);
    const Tensor normal = wide(x) * inverse;
    const Tensor weighted = wide(dy) * wide(gamma);
    put(dx, inverse * (weighted - normal * (weighted * normal).mean(normalized_dims(gamma), true)));
    put(dgamma, sum_to_shape(wide(dy) * normal, gamma.sizes()));
}

void add_rms_norm(const Tensor& x1, const Tensor& x2, const Tensor& gamma, double epsilon, const Tensor& y,
                  const Tensor& rstd, const Tensor& x) {
    const Tensor sum = wide(x1) + wide(x2);
    rms_norm(sum, gamma, epsilon, y, rstd);
    put(x, sum);
}

void add_rms_norm_cast(const Tensor& x1, const Tensor& x2, const Tensor& gamma, double epsilon, const Tensor& y_float,
                       const Tensor& y, const Tensor& rstd, const Tensor& x) {
    add_rms_norm(x1, x2, gamma, epsilon, y, rstd, x);
    put(y_float, y);
}

void inplace_add_rms_norm(const Tensor& x1, const Tensor& x2, const Tensor& gamma, double epsilon, const Tensor& rstd) {
    add_rms_norm(x1, x2, gamma, epsilon, x1, rstd, x2);
}

void layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                const Tensor& mean, const Tensor& rstd) {
    const auto [value, average, inverse] =
        at::native_layer_norm(wide(x), gamma.sizes(), wide(gamma), beta.defined() ? wide(beta) : beta, epsilon);
    put(y, value);
    put(mean, average);
    put(rstd, inverse);
}

// Gradients of the layer norm of `x`, which already holds the sum of its addends.
struct LayerNormGrad {
    Tensor dx, dgamma, dbeta;
};
LayerNormGrad layer_norm_grad(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                              const Tensor& gamma) {
    const Ints dims = normalized_dims(gamma);
    const Tensor normal = (x - wide(mean)) * wide(rstd);
    const Tensor weighted = wide(dy) * wide(gamma);
    const Tensor centred = weighted - weighted.mean(dims, true) - normal * (weighted * normal).mean(dims, true);
    return {wide(rstd) * centred, sum_to_shape(wide(dy) * normal, gamma.sizes()), sum_to_shape(wide(dy), gamma.sizes())};
}

void add_layer_norm(const Tensor& x1, const Tensor& x2, const Tensor& gamma, const Tensor& beta, const Tensor& bias,
                    double epsilon, bool wants_sum, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                    const Tensor& x) {
    Tensor sum = wide(x1) + wide(x2);
    if (bias.defined()) sum = sum + wide(bias);
    layer_norm(sum, gamma, beta, epsilon, y, mean, rstd);
    if (wants_sum) put(x, sum);
}

void add_layer_norm_grad(const Tensor& dy, const Tensor& x1, const Tensor& x2, const Tensor& rstd, const Tensor& mean,
                         const Tensor& gamma, const Tensor& dsum, const Tensor& dx, const Tensor& dgamma,
                         const Tensor& dbeta) {
    const auto grad = layer_norm_grad(dy, wide(x1) + wide(x2), mean, rstd, gamma);
    put(dx, dsum.defined() ? grad.dx + wide(dsum) : grad.dx);
    put(dgamma, grad.dgamma);
    put(dbeta, grad.dbeta);
}

// DeepNet's residual: layer_norm(alpha * x + gx).
void deep_norm(const Tensor& x, const Tensor& gx, const Tensor& beta, const Tensor& gamma, double alpha, double epsilon,
               const Tensor& mean, const Tensor& rstd, const Tensor& y) {
    layer_norm(wide(x) * alpha + wide(gx), gamma, beta, epsilon, y, mean, rstd);
}

void deep_norm_grad(const Tensor& dy, const Tensor& x, const Tensor& gx, const Tensor& gamma, const Tensor& mean,
                    const Tensor& rstd, double alpha, const Tensor& dx, const Tensor& dgx, const Tensor& dbeta,
                    const Tensor& dgamma) {
    const auto grad = layer_norm_grad(dy, wide(x) * alpha + wide(gx), mean, rstd, gamma);
    put(dx, grad.dx * alpha);
    put(dgx, grad.dx);
    put(dbeta, grad.dbeta);
    put(dgamma, grad.dgamma);
}

struct GroupNorm {
    Tensor y, mean, rstd;
};
GroupNorm group_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, int64_t groups, double epsilon) {
    const int64_t batch = x.size(0), channels = x.size(1), area = x[0][0].numel();
    auto [y, mean, rstd] =
        at::native_group_norm(wide(x).contiguous(), gamma.defined() ? wide(gamma) : gamma,
                              beta.defined() ? wide(beta) : beta, batch, channels, area, groups, epsilon);
    return {y, mean, rstd};
}

void group_norm_silu(const Tensor& x, const Tensor& gamma, const Tensor& beta, int64_t groups, double epsilon,
                     const Tensor& y, const Tensor& mean, const Tensor& rstd) {
    const auto norm = group_norm(x, gamma, beta, groups, epsilon);
    put(y, norm.y * norm.y.sigmoid());
    put(mean, norm.mean);
    put(rstd, norm.rstd);
}

}  // namespace

NPU_SIM_ACLNN(aclnnRmsNorm,
              (const aclTensor* x, const aclTensor* gamma, double epsilon, const aclTensor* y, const aclTensor* rstd),
              rms_norm, x, gamma, epsilon, y, rstd)
NPU_SIM_ACLNN(aclnnGemmaRmsNorm,
              (const aclTensor* x, const aclTensor* gamma, double epsilon, const aclTensor* y, const aclTensor* rstd),
              gemma_rms_norm, x, gamma, epsilon, y, rstd)
NPU_SIM_ACLNN(aclnnRmsNormGrad,
              (const aclTensor* dy, const aclTensor* x, const aclTensor* rstd, const aclTensor* gamma,
               const aclTensor* dx, const aclTensor* dgamma),
              rms_norm_grad, dy, x, rstd, gamma, dx, dgamma)
NPU_SIM_ACLNN(aclnnAddRmsNorm,
              (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, double epsilon, const aclTensor* y,
               const aclTensor* rstd, const aclTensor* x),
              add_rms_norm, x1, x2, gamma, epsilon, y, rstd, x)
NPU_SIM_ACLNN(aclnnAddRmsNormCast,
              (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, double epsilon,
               const aclTensor* y_float, const aclTensor* y, const aclTensor* rstd, const aclTensor* x),
              add_rms_norm_cast, x1, x2, gamma, epsilon, y_float, y, rstd, x)
NPU_SIM_ACLNN(aclnnInplaceAddRmsNorm,
              (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, double epsilon, const aclTensor* rstd),
              inplace_add_rms_norm, x1, x2, gamma, epsilon, rstd)
NPU_SIM_ACLNN(aclnnAddLayerNorm,
              (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, const aclTensor* beta,
               const aclTensor* bias, double epsilon, bool wants_sum, const aclTensor* y, const aclTensor* mean,
               const aclTensor* rstd, const aclTensor* x),
              add_layer_norm, x1, x2, gamma, beta, bias, epsilon, wants_sum, y, mean, rstd, x)
NPU_SIM_ACLNN(aclnnAddLayerNormGrad,
              (const aclTensor* dy, const aclTensor* x1, const aclTensor* x2, const aclTensor* rstd,
               const aclTensor* mean, const aclTensor* gamma, const aclTensor* dsum, const aclTensor* dx,
               const aclTensor* dgamma, const aclTensor* dbeta),
              add_layer_norm_grad, dy, x1, x2, rstd, mean, gamma, dsum, dx, dgamma, dbeta)
NPU_SIM_ACLNN(aclnnDeepNorm,
              (const aclTensor* x, const aclTensor* gx, const aclTensor* beta, const aclTensor* gamma, double alpha,
               double epsilon, const aclTensor* mean, const aclTensor* rstd, const aclTensor* y),
              deep_norm, x, gx, beta, gamma, alpha, epsilon, mean, rstd, y)
NPU_SIM_ACLNN(aclnnDeepNormGrad,
              (const aclTensor* dy, const aclTensor* x, const aclTensor* gx, const aclTensor* gamma,
               const aclTensor* mean, const aclTensor* rstd, double alpha, const aclTensor* dx, const aclTensor* dgx,
               const aclTensor* dbeta, const aclTensor* dgamma),
              deep_norm_grad, dy, x, gx, gamma, mean, rstd, alpha, dx, dgx, dbeta, dgamma)
NPU_SIM_ACLNN(aclnnGroupNormSilu,
              (const aclTensor* x, const aclTensor* gamma, const aclTensor* beta, int64_t groups, double epsilon,
               const aclTensor* y, const aclTensor* mean, const aclTensor* rstd),
              group_norm_silu, x, gamma, beta, groups, epsilon, y, mean, rstd)

}  // namespace npu_sim
