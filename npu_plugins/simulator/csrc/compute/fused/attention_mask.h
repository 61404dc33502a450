// Which scores take part in attention.
#pragma once

#include "compute/fused/attention.h"

namespace npu_sim {

// Sequence `index` of `count` in the TND layout; all sequences of the batch (index -1) in the others.
struct SequenceOf {
    int64_t index = -1;
    int64_t count = 0;
};

// True where a score is masked, broadcastable to (B, N, query_length, key_length); undefined if none is.
at::Tensor masked_scores(const Attention& attention, const SequenceOf& sequence, int64_t query_length,
                         int64_t key_length);

// Writes `value` into contiguous scores (heads, rows, K) where `masked`, broadcastable to them, is true. Several times
// as fast as masked_fill_, which looks at one element at a time.
void fill_masked(const at::Tensor& scores, const at::Tensor& masked, double value);

void check_mask(const Attention& attention);

}  // namespace npu_sim
