// The arguments of attention as (B, N, S, D) views, whatever their layout.
#pragma once

#include <vector>

#include "compute/fused/attention.h"
#include "compute/fused/attention_mask.h"

namespace npu_sim {

// One batch that shares its lengths: everything as (B, N, S, ·) views of the arguments.
struct Block {
    SequenceOf sequence;
    at::Tensor query, query_rope, key, key_rope, value;
    at::Tensor out, dout, dquery, dquery_rope, dkey, dkey_rope, dvalue;
    at::Tensor softmax_max, softmax_sum;  // (B, N, S, 8)
    at::Tensor kept;                      // dropout's factor, or undefined
    int64_t queries() const { return query.size(2); }
    int64_t keys() const { return key.size(2); }
};

int64_t key_heads(const Attention& attention);

// One block for a dense layout, one a sequence for a packed one.
std::vector<Block> blocks_of(const Attention& attention, const AttentionGrad& io);

}  // namespace npu_sim
