// Rotary position embedding.
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "compute/fused/math.h"
#include "compute/opapi/operator.h"

namespace npu_sim {
namespace {

using at::Tensor;

enum RotaryMode : int64_t { kHalf = 0, kInterleaved = 1 };

// A quarter turn in the planes of paired features: (a, b) becomes (-b, a); `back` turns the other way.
// Pairs are (i, i + D/2) in half mode and (2i, 2i + 1) in interleaved mode.
Tensor quarter_turn(const Tensor& x, int64_t mode, bool back) {
    TORCH_CHECK(mode == kHalf || mode == kInterleaved, "rotary mode ", mode,
                " is not simulated; use 'half' or 'interleave'");
    const Ints pairs = mode == kHalf ? Ints{2, x.size(-1) / 2} : Ints{x.size(-1) / 2, 2};
    const int64_t dim = mode == kHalf ? -2 : -1;
    const auto halves = x.unflatten(-1, pairs).unbind(dim);
    const Tensor first = back ? halves[1] : halves[1].neg();
    const Tensor second = back ? halves[0].neg() : halves[0];
    return at::stack({first, second}, dim).flatten(-2);
}

Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t mode) {
    return wide(x) * wide(cos) + quarter_turn(wide(x), mode, false) * wide(sin);
}

void rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t mode, const Tensor& out) {
    put(out, rotate(x, cos, sin, mode));
}

void rotary_v2(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t mode, const Tensor& rotation,
               const Tensor& out) {
    if (!rotation.defined()) return rotary(x, cos, sin, mode, out);
    put(out, wide(x) * wide(cos) + wide(x).matmul(wide(rotation)) * wide(sin));
}

// `x` is absent when nobody wants the gradients of the angles; those outputs are then left as they are.
void rotary_grad(const Tensor& dy, const Tensor& cos, const Tensor& sin, const Tensor& x, int64_t mode,
                 const Tensor& dx, const Tensor& dcos, const Tensor& dsin) {
    const Tensor grad = wide(dy);
    put(dx, grad * wide(cos) + quarter_turn(grad * wide(sin), mode, true));
    if (!x.defined()) return;
    put(dcos, sum_to_shape(grad * wide(x), cos.sizes()));
    put(dsin, sum_to_shape(grad * quarter_turn(wide(x), mode, false), sin.sizes()));
}

int64_t mode_of(const std::string& name) {
    if (name == "half") return kHalf;
    TORCH_CHECK(name == "interleave" || name == "interleaved", "rotary mode '", name, "' is not simulated");
    return kInterleaved;
}

void apply_rotary_in_place(const Tensor& query, const Tensor& key, const Tensor& cos, const Tensor& sin, int64_t,
                           const std::string& mode) {
    put(query, rotate(query, cos, sin, mode_of(mode)));
    put(key, rotate(key, cos, sin, mode_of(mode)));
}

// Reads the pairs interleaved and writes them in halves.
void interleave_rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& out) {
    const Tensor halves = wide(x).unflatten(-1, {x.size(-1) / 2, 2}).transpose(-1, -2).flatten(-2);
    put(out, rotate(halves, cos, sin, kHalf));
}

}  // namespace

NPU_SIM_ACLNN(aclnnRotaryPositionEmbedding,
              (const aclTensor* x, const aclTensor* cos, const aclTensor* sin, int64_t mode, const aclTensor* out),
              rotary, x, cos, sin, mode, out)
NPU_SIM_ACLNN(aclnnRotaryPositionEmbeddingV2,
              (const aclTensor* x, const aclTensor* cos, const aclTensor* sin, int64_t mode, const aclTensor* rotation,
               const aclTensor* out),
              rotary_v2, x, cos, sin, mode, rotation, out)
NPU_SIM_ACLNN(aclnnRotaryPositionEmbeddingGrad,
              (const aclTensor* dy, const aclTensor* cos, const aclTensor* sin, const aclTensor* x, int64_t mode,
               const aclTensor* dx, const aclTensor* dcos, const aclTensor* dsin),
              rotary_grad, dy, cos, sin, x, mode, dx, dcos, dsin)
NPU_SIM_ACLNN(aclnnApplyRotaryPosEmbV2,
              (const aclTensor* query, const aclTensor* key, const aclTensor* cos, const aclTensor* sin, int64_t layout,
               char* mode),
              apply_rotary_in_place, query, key, cos, sin, layout, mode)
NPU_SIM_ACLNN(aclnnInterleaveRope,
              (const aclTensor* x, const aclTensor* cos, const aclTensor* sin, const aclTensor* out), interleave_rope,
              x, cos, sin, out)

}  // namespace npu_sim
