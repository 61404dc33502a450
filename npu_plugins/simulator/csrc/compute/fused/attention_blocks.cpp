#include "compute/fused/attention_blocks.h"

#include <ATen/TensorOperators.h>

#include "compute/fused/dropout.h"

namespace npu_sim {
namespace {

using at::Tensor;

constexpr int64_t kStatisticsWidth = 8;

// A view as (B, N, S, D); `heads` is N of this tensor.
Tensor by_head(const Tensor& tensor, const std::string& layout, int64_t heads) {
    if (layout == "BNSD") return tensor;
    if (layout == "BSND") return tensor.transpose(1, 2);
    const Tensor split = tensor.unflatten(-1, {heads, tensor.size(-1) / heads});
    return layout == "BSH" ? split.transpose(1, 2) : split.permute({1, 2, 0, 3});
}

// Rows [begin, end) of a packed tensor (T, N, D) as (1, N, S, D).
Tensor by_head(const Tensor& packed, int64_t begin, int64_t end) {
    return packed.narrow(0, begin, end - begin).transpose(0, 1).unsqueeze(0);
}

Tensor dropout_factor(const Attention& attention, at::IntArrayRef shape, int64_t first_bit) {
    if (!attention.drop_bits.defined()) return {};
    const Tensor bits = unpack_bits(attention.drop_bits, first_bit, c10::multiply_integers(shape));
    return bits.view(shape).to(at::kFloat) / attention.keep_prob;
}

Block dense_block(const Attention& a, const AttentionGrad& io) {
    const auto view = [&](const Tensor& tensor, int64_t heads) {
        return tensor.defined() ? by_head(tensor, a.layout, heads) : tensor;
    };
    const int64_t n = a.heads, nk = key_heads(a);
    Block block{{}, view(a.query, n), view(a.query_rope, n), view(a.key, nk), view(a.key_rope, nk), view(a.value, nk),
                view(io.out, n), view(io.dout, n), view(io.dquery, n), view(io.dquery_rope, n), view(io.dkey, nk),
                view(io.dkey_rope, nk), view(io.dvalue, nk), io.softmax_max, io.softmax_sum, {}};
    block.kept = dropout_factor(a, {block.query.size(0), n, block.queries(), block.keys()}, 0);
    return block;
}

// Statistics of one packed sequence. By default the sequences lie one after the other, each as (N, S, 8).
Tensor packed_statistics(const Attention& a, const Tensor& statistics, int64_t begin, int64_t end) {
    if (!a.softmax_layout.empty()) return by_head(statistics, begin, end);
    const int64_t heads = statistics.size(1);
    return statistics.view({-1, kStatisticsWidth})
        .narrow(0, begin * heads, (end - begin) * heads)
        .view({1, heads, end - begin, kStatisticsWidth});
}

std::vector<Block> packed_blocks(const Attention& a, const AttentionGrad& io) {
    std::vector<Block> blocks;
    int64_t query_begin = 0, key_begin = 0, first_bit = 0;
    const auto count = static_cast<int64_t>(a.query_ends.size());
    for (int64_t i = 0; i < count; ++i) {
        const int64_t query_end = a.query_ends[i], key_end = a.key_ends[i];
        if (query_end <= query_begin || key_end <= key_begin) continue;  // an empty sequence, or padding at the end
        const auto rows = [&](const Tensor& t) { return t.defined() ? by_head(t, query_begin, query_end) : t; };
        const auto columns = [&](const Tensor& t) { return t.defined() ? by_head(t, key_begin, key_end) : t; };
        Block block{{i, count}, rows(a.query), rows(a.query_rope), columns(a.key), columns(a.key_rope),
                    columns(a.value), rows(io.out), rows(io.dout), rows(io.dquery), rows(io.dquery_rope),
                    columns(io.dkey), columns(io.dkey_rope), columns(io.dvalue),
                    packed_statistics(a, io.softmax_max, query_begin, query_end),
                    packed_statistics(a, io.softmax_sum, query_begin, query_end), {}};
        const int64_t scores = block.query.size(1) * block.queries() * block.keys();
        block.kept = dropout_factor(a, {1, block.query.size(1), block.queries(), block.keys()}, first_bit);
        first_bit += scores;
        query_begin = query_end;
        key_begin = key_end;
        blocks.push_back(std::move(block));
    }
    return blocks;
}

}  // namespace

int64_t key_heads(const Attention& a) {
    if (a.layout == "BNSD") return a.key.size(1);
    if (a.layout == "BSND") return a.key.size(2);
    const int64_t head_size = a.query.size(-1) / a.heads;
    return a.key.size(-1) / head_size;
}

std::vector<Block> blocks_of(const Attention& a, const AttentionGrad& io) {
    if (a.layout == "TND") return packed_blocks(a, io);
    return {dense_block(a, io)};
}

}  // namespace npu_sim
