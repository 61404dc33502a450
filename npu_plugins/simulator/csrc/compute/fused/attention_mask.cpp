#include "compute/fused/attention_mask.h"

#include <ATen/Dispatch.h>
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

// True where a key lies more than `tokens` to the right of the diagonal that is itself `shift` to the right: compared as
// rows with columns, since a matrix of distances takes longer to write than the attention that it is for.
Tensor right_of(int64_t query_length, int64_t key_length, int64_t shift, int64_t tokens) {
    const Tensor last = at::arange(query_length, at::kLong).unsqueeze(1) + shift + tokens;
    return at::arange(key_length, at::kLong).unsqueeze(0) > last;
}

Tensor left_of(int64_t query_length, int64_t key_length, int64_t shift, int64_t tokens) {
    const Tensor first = at::arange(query_length, at::kLong).unsqueeze(1) + shift - tokens;
    return at::arange(key_length, at::kLong).unsqueeze(0) < first;
}

Tensor outside_band(const Attention& attention, int64_t query_length, int64_t key_length, int64_t shift) {
    return right_of(query_length, key_length, shift, attention.next_tokens)
        .logical_or_(left_of(query_length, key_length, shift, attention.pre_tokens));
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
    const int64_t queries = query_length, keys = key_length, right_down = keys - queries;
    switch (mode) {
        case kDefault:
            return own_mask(attention, sequence, queries, keys) | outside_band(attention, queries, keys, 0);
        case kAllMask:
        case kPrefix: return own_mask(attention, sequence, queries, keys);
        case kLeftUpCausal: return right_of(queries, keys, 0, 0);
        case kRightDownCausal: return right_of(queries, keys, right_down, 0);
        case kBand: return outside_band(attention, queries, keys, right_down);
        default: return right_of(queries, keys, right_down, 0).logical_and(outside_prefix(attention, keys));
    }
}

namespace {

// A choice without a branch. GCC turns it into vector instructions from -O3 on, and torch's headers are compiled with
// less.
#if defined(__GNUC__) && !defined(__clang__)
#define NPU_SIM_VECTORIZE __attribute__((optimize("O3")))
#else
#define NPU_SIM_VECTORIZE
#endif

template <class Score>
NPU_SIM_VECTORIZE void fill_row(Score* scores, const bool* masked, int64_t count, Score value) {
    for (int64_t i = 0; i < count; ++i) scores[i] = masked[i] ? value : scores[i];
}

}  // namespace

void fill_masked(const at::Tensor& scores, const at::Tensor& masked, double value) {
    const int64_t rows = scores.size(1), columns = scores.size(2);
    Tensor choice = masked.expand(scores.sizes());
    if (columns > 1 && choice.stride(2) != 1) choice = choice.contiguous();
    const bool* chosen = choice.const_data_ptr<bool>();
    AT_DISPATCH_FLOATING_TYPES(scores.scalar_type(), "fill_masked", [&] {
        auto* target = scores.mutable_data_ptr<scalar_t>();
        for (int64_t head = 0; head < scores.size(0); ++head)
            for (int64_t row = 0; row < rows; ++row)
                fill_row(target + (head * rows + row) * columns,
                         chosen + head * choice.stride(0) + row * choice.stride(1), columns,
                         static_cast<scalar_t>(value));
    });
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
