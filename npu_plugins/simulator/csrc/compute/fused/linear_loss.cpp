// Matrix products and losses that torch_npu's own kernels call.
#include <ATen/TensorOperators.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "compute/fused/math.h"
#include "compute/opapi/operator.h"

namespace npu_sim {
namespace {

using at::Tensor;

void matrix_product(const Tensor& a, const Tensor& b, const Tensor& out, int8_t) {
    put(out, at::matmul(wide(a), wide(b)));
}

void add_matrix_product(const Tensor& addend, const Tensor& a, const Tensor& b, const c10::Scalar& beta,
                        const c10::Scalar& alpha, const Tensor& out, int8_t) {
    put(out, wide(addend) * beta + at::matmul(wide(a), wide(b)) * alpha);
}

struct Loss {
    std::string reduction;
    int64_t ignore_index;
    double smoothing, zloss_scale;
};

// What each row contributes: its target's weight (0 if ignored), and the mean's divisor.
struct Rows {
    Tensor target, valid, weight, divisor;
};
Rows rows_of(const Tensor& log_probabilities, const Tensor& target, const Tensor& weight, int64_t ignore_index) {
    Rows rows;
    rows.valid = target != ignore_index;
    rows.target = at::where(rows.valid, target, at::zeros_like(target)).to(at::kLong).unsqueeze(1);
    const Tensor by_class =
        weight.defined() ? wide(weight) : at::ones({log_probabilities.size(1)}, log_probabilities.options());
    rows.weight = by_class.index_select(0, rows.target.squeeze(1)) * rows.valid;
    rows.divisor = rows.weight.sum();
    return rows;
}

Tensor reduced(const Tensor& rows, const std::string& reduction, const Tensor& divisor) {
    if (reduction == "none") return rows;
    TORCH_CHECK(reduction == "sum" || reduction == "mean", "reduction must be none, sum or mean, but got ", reduction);
    return reduction == "sum" ? rows.sum() : rows.sum() / divisor;
}

void cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight, const std::string& reduction,
                   int64_t ignore_index, double smoothing, double zloss_scale, bool wants_zloss, const Tensor& loss,
                   const Tensor& log_probabilities, const Tensor& zloss, const Tensor& lse) {
    TORCH_CHECK(zloss_scale == 0 && !wants_zloss, "the z loss is not simulated");
    const Tensor log_p = at::log_softmax(wide(logits), 1);
    put(log_probabilities, log_p);
    const Rows rows = rows_of(log_p, target, weight, ignore_index);
    Tensor each = log_p.gather(1, rows.target).squeeze(1).neg() * rows.weight * (1 - smoothing);
    if (smoothing > 0) {
        const Tensor by_class = weight.defined() ? log_p * wide(weight) : log_p;
        each = each - by_class.sum(1) * rows.valid * (smoothing / log_p.size(1));
    }
    put(loss, reduced(each, reduction, rows.divisor));
    if (lse.numel() == logits.size(0)) put(lse, at::logsumexp(wide(logits), 1));
}

void cross_entropy_grad(const Tensor& dloss, const Tensor& log_probabilities, const Tensor& target,
                        const Tensor& weight, const Tensor& dzloss, const Tensor&, const std::string& reduction,
                        int64_t ignore_index, double smoothing, double zloss_scale, const Tensor& dlogits) {
    TORCH_CHECK(zloss_scale == 0, "the z loss is not simulated");
    const Tensor log_p = wide(log_probabilities);
    const Rows rows = rows_of(log_p, target, weight, ignore_index);
    Tensor each = wide(dloss);
    each = reduction == "mean" ? each / rows.divisor : each;
    each = each.expand_as(rows.weight);
    // Gradient with respect to log_p, then through the log softmax.
    Tensor dlog = at::zeros_like(log_p).scatter(1, rows.target, (each * rows.weight * (smoothing - 1)).unsqueeze(1));
    if (smoothing > 0) {
        const Tensor share = (each * rows.valid * (-smoothing / static_cast<double>(log_p.size(1)))).unsqueeze(1);
        dlog = dlog + (weight.defined() ? share * wide(weight) : share);
    }
    put(dlogits, dlog - log_p.exp() * dlog.sum(1, true));
}

}  // namespace

NPU_SIM_ACLNN(aclnnMm, (const aclTensor* a, const aclTensor* b, const aclTensor* out, int8_t precision), matrix_product,
              a, b, out, precision)
NPU_SIM_ACLNN(aclnnAddmm,
              (const aclTensor* addend, const aclTensor* a, const aclTensor* b, const aclScalar* beta,
               const aclScalar* alpha, const aclTensor* out, int8_t precision),
              add_matrix_product, addend, a, b, beta, alpha, out, precision)
NPU_SIM_ACLNN(aclnnCrossEntropyLoss,
              (const aclTensor* logits, const aclTensor* target, const aclTensor* weight, char* reduction,
               int64_t ignore_index, double smoothing, double zloss_scale, bool wants_zloss, const aclTensor* loss,
               const aclTensor* log_probabilities, const aclTensor* zloss, const aclTensor* lse),
              cross_entropy, logits, target, weight, reduction, ignore_index, smoothing, zloss_scale, wants_zloss, loss,
              log_probabilities, zloss, lse)
NPU_SIM_ACLNN(aclnnCrossEntropyLossGrad,
              (const aclTensor* dloss, const aclTensor* log_probabilities, const aclTensor* target,
               const aclTensor* weight, const aclTensor* dzloss, const aclTensor* lse, char* reduction,
               int64_t ignore_index, double smoothing, double zloss_scale, const aclTensor* dlogits),
              cross_entropy_grad, dloss, log_probabilities, target, weight, dzloss, lse, reduction, ignore_index,
              smoothing, zloss_scale, dlogits)

}  // namespace npu_sim
