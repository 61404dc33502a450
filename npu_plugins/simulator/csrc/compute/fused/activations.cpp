// Activations and gated activations.
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu_backward.h>

#include "compute/fused/math.h"
#include "compute/opapi/operator.h"

namespace npu_sim {
namespace {

using at::Tensor;

// The two halves along `dim`: copies, so that the result may be written over the input.
struct Halves {
    Tensor left, right;
    explicit Halves(const Tensor& x, int64_t dim) {
        TORCH_CHECK(x.size(dim) % 2 == 0, "the gated dimension must be even, but it is ", x.size(dim));
        const auto chunks = wide(x).chunk(2, dim);
        left = chunks[0];
        right = chunks[1];
    }
};

void swiglu(const Tensor& x, int64_t dim, const Tensor& out) {
    const Halves gate(x, dim);
    put(out, gate.left * gate.left.sigmoid() * gate.right);
}

void swiglu_grad(const Tensor& dy, const Tensor& x, int64_t dim, const Tensor& dx) {
    const Halves gate(x, dim);
    const Tensor grad = wide(dy);
    put(dx, at::cat({at::silu_backward(grad * gate.right, gate.left), grad * gate.left * gate.left.sigmoid()}, dim));
}

const char* approximation(bool tanh) { return tanh ? "tanh" : "none"; }

void gelu(const Tensor& x, int64_t approximate, const Tensor& out) {
    put(out, at::gelu(wide(x), approximation(approximate == 1)));
}

void gelu_grad(const Tensor& dy, const Tensor& x, const std::string& approximate, const Tensor& dx) {
    put(dx, at::gelu_backward(wide(dy), wide(x), approximate));
}

void gelu_mul(const Tensor& x, const std::string& approximate, const Tensor& out) {
    const Halves gate(x, -1);
    put(out, at::gelu(gate.left, approximate) * gate.right);
}

// The activated half is the left one if `left`, else the right one.
void geglu(const Tensor& x, int64_t dim, int64_t approximate, bool left, const Tensor& out, const Tensor& activated) {
    const Halves gate(x, dim);
    const Tensor value = at::gelu(left ? gate.left : gate.right, approximation(approximate == 1));
    put(out, value * (left ? gate.right : gate.left));
    put(activated, value);
}

void geglu_grad(const Tensor& dy, const Tensor& x, const Tensor& activated, int64_t dim, int64_t approximate, bool left,
                const Tensor& dx) {
    const Halves gate(x, dim);
    const Tensor grad = wide(dy);
    const Tensor inner = left ? gate.left : gate.right;
    const Tensor dinner =
        at::gelu_backward(grad * (left ? gate.right : gate.left), inner, approximation(approximate == 1));
    const Tensor douter = grad * wide(activated);
    put(dx, left ? at::cat({dinner, douter}, dim) : at::cat({douter, dinner}, dim));
}

// x * sigmoid(1.702 x).
constexpr double kFastGelu = 1.702;

void fast_gelu(const Tensor& x, const Tensor& out) { put(out, wide(x) * (wide(x) * kFastGelu).sigmoid()); }

void fast_gelu_grad(const Tensor& dy, const Tensor& x, const Tensor& dx) {
    const Tensor gate = (wide(x) * kFastGelu).sigmoid();
    put(dx, wide(dy) * (gate + wide(x) * kFastGelu * gate * (1 - gate)));
}

void softmax(const Tensor& x, int64_t dim, const Tensor& out) { put(out, wide(x).softmax(dim)); }

}  // namespace

NPU_SIM_ACLNN(aclnnSwiGlu, (const aclTensor* x, int64_t dim, const aclTensor* out), swiglu, x, dim, out)
NPU_SIM_ACLNN(aclnnSwiGluGrad, (const aclTensor* dy, const aclTensor* x, int64_t dim, const aclTensor* dx), swiglu_grad,
              dy, x, dim, dx)
NPU_SIM_ACLNN(aclnnGeluV2, (const aclTensor* x, int64_t approximate, const aclTensor* out), gelu, x, approximate, out)
NPU_SIM_ACLNN(aclnnGeluBackwardV2,
              (const aclTensor* dy, const aclTensor* x, char* approximate, const aclTensor* dx), gelu_grad, dy, x,
              approximate, dx)
NPU_SIM_ACLNN(aclnnGeluMul, (const aclTensor* x, char* approximate, const aclTensor* out), gelu_mul, x, approximate, out)
NPU_SIM_ACLNN(aclnnGeGluV3,
              (const aclTensor* x, int64_t dim, int64_t approximate, bool left, const aclTensor* out,
               const aclTensor* activated),
              geglu, x, dim, approximate, left, out, activated)
NPU_SIM_ACLNN(aclnnGeGluV3Backward,
              (const aclTensor* dy, const aclTensor* x, const aclTensor* activated, int64_t dim, int64_t approximate,
               bool left, const aclTensor* dx),
              geglu_grad, dy, x, activated, dim, approximate, left, dx)
NPU_SIM_ACLNN(aclnnFastGelu, (const aclTensor* x, const aclTensor* out), fast_gelu, x, out)
NPU_SIM_ACLNN(aclnnFastGeluBackward, (const aclTensor* dy, const aclTensor* x, const aclTensor* dx), fast_gelu_grad, dy,
              x, dx)
NPU_SIM_ACLNN(aclnnSoftmax, (const aclTensor* x, int64_t dim, const aclTensor* out), softmax, x, dim, out)

}  // namespace npu_sim
