#include "compute/fused/attention_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

namespace npu_sim {
namespace {

using at::Tensor;

// CANN's sparse modes.
enum SparseMode : int64_t {
    kDefault = 0,
    kAllMask = 1,
    kLeftUpCausal = 2,
    kRightDownCausal = 3,
    kBand = 4,
    kPrefix = 5,
    kPrefixCompressed = 6,
    kRightDownCausalSplit = 7,  // the last sequence is a band
    kLeftUpCausalSplit = 8,     // the first sequence is a band
};

constexpr int64_t kCompressedMask = 2048;      // side of the triangle that stands for a causal mask of any size
constexpr int64_t kCompressedPrefixRows = 3072;

bool is_compressed(int64_t mode) { return mode >= kLeftUpCausal && mode != kPrefix; }

// Position of each key relative to each query on the diagonal `shift` to the right: 0 on it, positive above.
Tensor distance(int64_t query_length, int64_t key_length, int64_t shift) {
    const Tensor queries = at::arange(query_length, at::kLong).unsqueeze(1);
    return at::arange(key_length, at::kLong).unsqueeze(0) - queries - shift;
}

Tensor outside_band(const Attention& attention, const Tensor& distance) {
    return (distance > attention.next_tokens).logical_or(distance < -attention.pre_tokens);
}

// The user's mask for one sequence of a packed batch: the top left corner.
Tensor own_mask(const Attention& attention, const SequenceOf& sequence, int64_t query_length, int64_t key_length) {
    const Tensor mask = attention.mask.to(at::kBool);
    if (sequence.index < 0) return mask;
    return mask.narrow(-2, 0, query_length).narrow(-1, 0, key_length);
}

Tensor outside_prefix(const Attention& attention, int64_t key_length) {
    const Tensor prefix = at::tensor(attention.prefix, at::kLong).view({-1, 1, 1, 1});
    return at::arange(key_length, at::kLong).view({1, 1, 1, -1}) >= prefix;
}

}  // namespace

Tensor masked_scores(const Attention& attention, const SequenceOf& sequence, int64_t query_length,
                     int64_t key_length) {
    if (!attention.mask.defined()) return {};
    int64_t mode = attention.sparse_mode;
    if (mode == kRightDownCausalSplit) mode = sequence.index == sequence.count - 1 ? kBand : kRightDownCausal;
    if (mode == kLeftUpCausalSplit) mode = sequence.index == 0 ? kBand : kLeftUpCausal;
    const Tensor left_up = distance(query_length, key_length, 0);
    const Tensor right_down = distance(query_length, key_length, key_length - query_length);
    switch (mode) {
        case kDefault: return own_mask(attention, sequence, query_length, key_length) | outside_band(attention, left_up);
        case kAllMask:
        case kPrefix: return own_mask(attention, sequence, query_length, key_length);
        case kLeftUpCausal: return left_up > 0;
        case kRightDownCausal: return right_down > 0;
        case kBand: return outside_band(attention, right_down);
        default: return (right_down > 0).logical_and(outside_prefix(attention, key_length));
    }
}

void check_mask(const Attention& attention) {
    const int64_t mode = attention.sparse_mode;
    if (!attention.mask.defined()) return;
    TORCH_CHECK(attention.mask.scalar_type() == at::kBool || attention.mask.scalar_type() == at::kByte,
                "atten_mask must be bool or uint8, but it is ", attention.mask.scalar_type());
    TORCH_CHECK(mode != kPrefixCompressed || !attention.prefix.empty(), "sparse_mode 6 needs `prefix`");
    if (!is_compressed(mode)) return;
    const int64_t rows = mode == kPrefixCompressed ? kCompressedPrefixRows : kCompressedMask;
    TORCH_CHECK(attention.mask.dim() >= 2 && attention.mask.size(-2) == rows && attention.mask.size(-1) == kCompressedMask,
                "sparse_mode ", mode, " takes a compressed atten_mask of ", rows, " x ", kCompressedMask, ", but got ",
                attention.mask.sizes());
}

}  // namespace npu_sim
