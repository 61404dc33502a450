// The arguments of an aclnnFlashAttention* function as they arrive; absent ones keep their defaults.
#pragma once

#include "compute/fused/attention.h"

namespace npu_sim {

struct AttentionHandles {
    const aclTensor *query = nullptr, *query_rope = nullptr, *key = nullptr, *key_rope = nullptr, *value = nullptr;
    const aclTensor *pse = nullptr, *drop_bits = nullptr, *padding_mask = nullptr, *mask = nullptr, *sink = nullptr;
    const aclIntArray *prefix = nullptr, *query_ends = nullptr, *key_ends = nullptr;
    double scale = 1, keep_prob = 1;
    int64_t pre_tokens = 0, next_tokens = 0, heads = 0;
    const char* layout = nullptr;
    int64_t sparse_mode = 0, pse_type = 1;
    const char* softmax_layout = nullptr;
};

// Copies what outlives the call; throws if something is wrong or not simulated.
inline Attention take(const AttentionHandles& h) {
    Attention a{take(h.query), take(h.query_rope), take(h.key), take(h.key_rope), take(h.value), take(h.pse),
                take(h.drop_bits), take(h.mask), take(h.sink), take(h.prefix), take(h.query_ends), take(h.key_ends),
                h.scale, h.keep_prob, h.pre_tokens, h.next_tokens, h.heads, take(h.layout), h.sparse_mode, h.pse_type,
                take(h.softmax_layout)};
    TORCH_CHECK(!h.padding_mask, "padding_mask is not supported; use atten_mask");
    check_attention(a);
    return a;
}

}  // namespace npu_sim
