#include "compute/fused/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>

#include <limits>

#include "compute/fused/attention_mask.h"
#include "compute/fused/dropout.h"
#include "compute/fused/math.h"

namespace npu_sim {
namespace {

using at::Tensor;

constexpr float kMasked = std::numeric_limits<float>::lowest();
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

// One batch that shares its lengths: everything as (B, N, S, ·) views of the arguments.
struct Block {
    SequenceOf sequence;
    Tensor query, query_rope, key, key_rope, value;
    Tensor out, dout, dquery, dquery_rope, dkey, dkey_rope, dvalue;
    Tensor softmax_max, softmax_sum;  // (B, N, S, 8)
    Tensor kept;                      // dropout's factor, or undefined
    int64_t queries() const { return query.size(2); }
    int64_t keys() const { return key.size(2); }
};

Tensor dropout_factor(const Attention& attention, at::IntArrayRef shape, int64_t first_bit) {
    if (!attention.drop_bits.defined()) return {};
    const Tensor bits = unpack_bits(attention.drop_bits, first_bit, c10::multiply_integers(shape));
    return bits.view(shape).to(at::kFloat) / attention.keep_prob;
}

int64_t key_heads(const Attention& a) {
    if (a.layout == "BNSD") return a.key.size(1);
    if (a.layout == "BSND") return a.key.size(2);
    const int64_t head_size = a.query.size(-1) / a.heads;
    return a.key.size(-1) / head_size;
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

std::vector<Block> blocks_of(const Attention& a, const AttentionGrad& io) {
    if (a.layout == "TND") return packed_blocks(a, io);
    return {dense_block(a, io)};
}

// Repeats each key head for the query heads that share it.
Tensor for_queries(const Tensor& key, int64_t heads) {
    return key.size(1) == heads ? wide(key) : wide(key).repeat_interleave(heads / key.size(1), 1);
}

// The opposite, for gradients.
Tensor for_keys(const Tensor& grad, int64_t heads) {
    return grad.size(1) == heads ? grad : grad.unflatten(1, {heads, grad.size(1) / heads}).sum(2);
}

Tensor with_rope(const Tensor& tensor, const Tensor& rope) {
    return rope.defined() ? at::cat({wide(tensor), wide(rope)}, -1) : wide(tensor);
}

struct Scores {
    Tensor query, key;  // float32, with the rotary part, key repeated to all heads
    Tensor value;       // (B, N, Q, K)
    Tensor masked;
};

Scores scores_of(const Attention& a, const Block& block) {
    Scores s;
    const int64_t heads = block.query.size(1);
    s.query = with_rope(block.query, block.query_rope);
    s.key = for_queries(with_rope(block.key, block.key_rope), heads);
    s.value = s.query.matmul(s.key.transpose(-1, -2));
    if (a.pse.defined() && a.pse_type == 1) s.value.add_(wide(a.pse));
    s.value.mul_(a.scale);
    if (a.pse.defined() && a.pse_type == 0) s.value.add_(wide(a.pse));
    s.masked = masked_scores(a, block.sequence, block.queries(), block.keys());
    if (s.masked.defined()) s.value.masked_fill_(s.masked, kMasked);
    return s;
}

// Exponentials relative to `maximum`, in place of the scores: what is as large as they are is not made twice.
// A row with nothing but masked scores has none.
Tensor exponentials(Scores& s, const Tensor& maximum) {
    s.value.sub_(maximum).exp_();
    return s.masked.defined() ? s.value.masked_fill_(s.masked, 0) : s.value;
}

// In place; 0 where the sum is, since all its parts are.
Tensor divided(const Tensor& part, const Tensor& sum) { return part.div_(at::where(sum > 0, sum, 1.0)); }

Tensor sink_logits(const Attention& a) { return wide(a.sink).view({1, -1, 1, 1}); }

}  // namespace

void check_attention(const Attention& a) {
    const bool packed = a.layout == "TND";
    TORCH_CHECK(packed || a.layout == "BSH" || a.layout == "SBH" || a.layout == "BNSD" || a.layout == "BSND",
                "input_layout ", a.layout, " is not simulated");
    TORCH_CHECK(a.query.scalar_type() == a.key.scalar_type() && a.key.scalar_type() == a.value.scalar_type(),
                "query, key and value must have one dtype, but got ", a.query.scalar_type(), ", ", a.key.scalar_type(),
                " and ", a.value.scalar_type());
    TORCH_CHECK(a.pse_type == 0 || a.pse_type == 1, "pse_type ", a.pse_type,
                " (a bias the kernel makes itself) is not simulated");
    TORCH_CHECK(!a.pse.defined() || !packed, "a position bias in the TND layout is not simulated");
    TORCH_CHECK(!packed || a.query_ends.size() == a.key_ends.size(),
                "actual_seq_qlen and actual_seq_kvlen must have one length");
    const int64_t heads = packed ? a.query.size(1) : a.heads, keys = packed ? a.key.size(1) : key_heads(a);
    TORCH_CHECK(keys > 0 && heads % keys == 0, "the number of query heads (", heads,
                ") must be a multiple of the number of key heads (", keys, ")");
    check_mask(a);
}

namespace {

// Rows of a packed batch that belong to no sequence hold zeros.
void clear(const Attention& a, std::initializer_list<Tensor> outputs) {
    if (a.layout != "TND") return;
    for (const Tensor& output : outputs)
        if (output.defined()) output.zero_();
}

}  // namespace

void attention_forward(const Attention& a, const AttentionResult& result) {
    clear(a, {result.out, result.softmax_max, result.softmax_sum});
    AttentionGrad io;
    io.out = result.out;
    io.softmax_max = result.softmax_max;
    io.softmax_sum = result.softmax_sum;
    for (const Block& block : blocks_of(a, io)) {
        Scores s = scores_of(a, block);
        Tensor maximum = s.value.amax(-1, true);
        if (a.sink.defined()) maximum = at::maximum(maximum, sink_logits(a));
        Tensor weights = exponentials(s, maximum);
        Tensor sum = weights.sum(-1, true);
        if (a.sink.defined()) sum = sum + (sink_logits(a) - maximum).exp();
        weights = divided(weights, sum);
        if (block.kept.defined()) weights.mul_(block.kept);
        block.out.copy_(weights.matmul(for_queries(block.value, block.query.size(1))));
        block.softmax_max.copy_(maximum.expand_as(block.softmax_max));
        block.softmax_sum.copy_(sum.expand_as(block.softmax_sum));
    }
}

namespace {

void write_rope_parts(const Tensor& grad, const Tensor& plain, const Tensor& rope) {
    const int64_t size = plain.size(-1);
    plain.copy_(grad.narrow(-1, 0, size));
    if (rope.defined()) rope.copy_(grad.narrow(-1, size, rope.size(-1)));
}

}  // namespace

void attention_backward(const Attention& a, const AttentionGrad& grad) {
    clear(a, {grad.dquery, grad.dquery_rope, grad.dkey, grad.dkey_rope, grad.dvalue});
    if (grad.dsink.defined()) grad.dsink.zero_();
    for (const Block& block : blocks_of(a, grad)) {
        const int64_t heads = block.query.size(1), keys = block.key.size(1);
        Scores s = scores_of(a, block);
        const Tensor maximum = block.softmax_max.narrow(-1, 0, 1), sum = block.softmax_sum.narrow(-1, 0, 1);
        const Tensor weights = divided(exponentials(s, maximum), sum);
        const Tensor dout = wide(block.dout);
        const Tensor used = block.kept.defined() ? weights * block.kept : weights;
        block.dvalue.copy_(for_keys(used.transpose(-1, -2).matmul(dout), keys));
        Tensor dweights = dout.matmul(for_queries(block.value, heads).transpose(-1, -2));
        if (block.kept.defined()) dweights.mul_(block.kept);
        const Tensor average = (dout * wide(block.out)).sum(-1, true);
        const Tensor dlogits = dweights.sub_(average).mul_(weights);
        const Tensor dscores = dlogits * a.scale;
        write_rope_parts(dscores.matmul(s.key), block.dquery, block.dquery_rope);
        write_rope_parts(for_keys(dscores.transpose(-1, -2).matmul(s.query), keys), block.dkey, block.dkey_rope);
        if (grad.dpse.defined() && a.pse.defined())
            put(grad.dpse, sum_to_shape(a.pse_type == 1 ? dscores : dlogits, a.pse.sizes()));
        if (grad.dsink.defined() && a.sink.defined()) {
            const Tensor share = divided((sink_logits(a) - maximum).exp(), sum);
            grad.dsink.add_((share * average).sum({0, 2, 3}).neg().view_as(grad.dsink));
        }
    }
}

}  // namespace npu_sim
