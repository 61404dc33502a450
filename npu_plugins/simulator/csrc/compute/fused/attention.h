// Scaled dot-product attention as CANN's FlashAttentionScore defines it: layouts, masks by sparse mode, position
// bias, dropout bits, attention sink, and the gradients.
#pragma once

#include <string>

#include "compute/opapi/operator.h"

namespace npu_sim {

// The arguments that forward and backward share. Tensors that are absent are undefined.
struct Attention {
    at::Tensor query, query_rope, key, key_rope, value;
    at::Tensor pse;        // position bias, added to the scores
    at::Tensor drop_bits;  // one bit a score, set where it is kept
    at::Tensor mask;       // non-zero where a score does not take part
    at::Tensor sink;       // one logit a head that only adds to the softmax's denominator
    Ints prefix, query_ends, key_ends;  // ends: cumulative sequence lengths of the TND layout
    double scale = 1;
    double keep_prob = 1;
    int64_t pre_tokens = 0, next_tokens = 0, heads = 0;
    std::string layout;
    int64_t sparse_mode = 0;
    int64_t pse_type = 1;  // 0: scale, then add the bias; 1: add, then scale
    std::string softmax_layout;
};

struct AttentionResult {
    at::Tensor softmax_max, softmax_sum;  // (B, N, S, 8) or (T, N, 8), the same value eight times
    at::Tensor out;
};

struct AttentionGrad {
    at::Tensor dout, softmax_max, softmax_sum, out;                  // given
    at::Tensor dquery, dquery_rope, dkey, dkey_rope, dvalue, dpse, dsink;  // filled
};

// Throws if an argument is wrong or not simulated.
void check_attention(const Attention& attention);

void attention_forward(const Attention& attention, const AttentionResult& result);
void attention_backward(const Attention& attention, const AttentionGrad& grad);

}  // namespace npu_sim
