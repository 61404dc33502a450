#include "compute/fused/attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <limits>

#include "compute/fused/attention_tiles.h"
#include "compute/fused/math.h"

namespace npu_sim {
namespace {

using at::Tensor;

constexpr float kMasked = std::numeric_limits<float>::lowest();
constexpr float kLeastExponent = -87;  // exp of it is 1.6e-38, nothing beside the 1 that the maximum adds

// Repeats each key head for the query heads that share it. (heads, K, D)
Tensor for_queries(const Tensor& key, int64_t heads) {
    return key.size(0) == heads ? key : key.repeat_interleave(heads / key.size(0), 0);
}

// The opposite, for gradients.
Tensor for_keys(const Tensor& grad, int64_t heads) {
    return grad.size(0) == heads ? grad : grad.unflatten(0, {heads, grad.size(0) / heads}).sum(1);
}

Tensor with_rope(const Tensor& tensor, const Tensor& rope) {
    return rope.defined() ? at::cat({wide(tensor), wide(rope)}, -1) : wide(tensor);
}

// One unit's keys and values in float32, and what a tile of it needs of them.
struct KeyValue {
    Tensor key, value;  // (key heads, K, D)
    int64_t key_head, group;

    KeyValue(const Block& block, const Unit& unit, int64_t group)
        : key(wide(heads_of(block.key, unit))),
          value(wide(heads_of(block.value, unit))),
          key_head(unit.key_head),
          group(group) {
        if (block.key_rope.defined()) key = with_rope(key, heads_of(block.key_rope, unit));
    }

    bool whole(const Tile& tile) const { return tile.heads == key.size(0) * group; }
    // Of `tensor` (key heads, K, ·), what the tile's query heads share: views unless a key head is shared by several.
    Tensor shared(const Tensor& tensor, const Tile& tile) const {
        return whole(tile) ? tensor : tensor.narrow(0, tile.head / group - key_head, 1);
    }
    Tensor of(const Tensor& tensor, const Tile& tile) const { return for_queries(shared(tensor, tile), tile.heads); }
};

struct Scores {
    Tensor query;   // (heads, rows, D), times the scale
    Tensor value;   // (heads, rows, K)
    Tensor masked;  // broadcastable to it, or undefined
};

Scores scores_of(const Attention& a, const Block& block, const Tensor& masked, const Tile& tile, const Tensor& key) {
    Scores s;
    s.query = wide(rows_of(block.query, tile));
    if (block.query_rope.defined()) s.query = with_rope(s.query, rows_of(block.query_rope, tile));
    s.query = s.query.mul(a.scale);
    s.value = at::bmm(s.query, key.transpose(-1, -2));  // (heads, rows, D) x (heads, D, K)
    if (a.pse.defined()) s.value.add_(wide(part(a.pse, tile)), a.pse_type == 1 ? a.scale : 1.0);
    if (masked.defined()) {
        s.masked = part(masked, tile);
        fill_masked(s.value, s.masked, kMasked);
    }
    return s;
}

// exp(score - shift) in place of the scores, 0 where masked.
Tensor exponentials(Scores& s, const Tensor& shift) {
    s.value.sub_(shift);
    if (!s.masked.defined()) return s.value.exp_();
    // The library's exp takes ten times as long where its result is 0 or below the least normal number.
    s.value.clamp_min_(kLeastExponent).exp_();
    fill_masked(s.value, s.masked, 0);
    return s.value;
}

// 1 where the sum is 0, since all its parts are.
Tensor divisor(const Tensor& sum) { return at::where(sum > 0, sum, 1.0); }

Tensor sink_logits(const Attention& a, const Tile& tile) {
    return wide(a.sink).view({-1, 1, 1}).narrow(0, tile.head, tile.heads);
}

// Calls `work` for each unit, several at once where no two write to one place.
template <class Work>
void for_each_unit(const Tiling& tiling, bool apart, const Work& work) {
    const std::vector<Unit> units = tiling.units();
    const auto count = static_cast<int64_t>(units.size());
    at::parallel_for(0, count, apart ? 1 : std::max<int64_t>(count, 1), [&](int64_t begin, int64_t end) {
        at::NoGradGuard no_grad;
        at::AutoDispatchBelowADInplaceOrView below_autograd;  // a thread of OpenMP's does not inherit it
        for (int64_t i = begin; i < end; ++i) work(units[i]);
    });
}

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

void forward_tile(const Attention& a, const Block& block, const Tensor& masked, const KeyValue& kv, const Tile& tile) {
    Scores s = scores_of(a, block, masked, tile, kv.of(kv.key, tile));
    Tensor maximum = s.value.amax(-1, true);
    if (a.sink.defined()) maximum = at::maximum(maximum, sink_logits(a, tile));
    const Tensor weights = exponentials(s, maximum);
    Tensor sum = weights.sum(-1, true);
    if (a.sink.defined()) sum = sum + (sink_logits(a, tile) - maximum).exp();
    if (block.kept.defined()) weights.mul_(part(block.kept, tile));
    const Tensor out = at::bmm(weights, kv.of(kv.value, tile));  // (heads, rows, K) x (heads, K, D)
    rows_of(block.out, tile).copy_(out.div_(divisor(sum)));
    rows_of(block.softmax_max, tile).copy_(maximum.expand({-1, -1, block.softmax_max.size(-1)}));
    rows_of(block.softmax_sum, tile).copy_(sum.expand({-1, -1, block.softmax_sum.size(-1)}));
}

}  // namespace

void attention_forward(const Attention& a, const AttentionResult& result) {
    clear(a, {result.out, result.softmax_max, result.softmax_sum});
    AttentionGrad io;
    io.out = result.out;
    io.softmax_max = result.softmax_max;
    io.softmax_sum = result.softmax_sum;
    for (const Block& block : blocks_of(a, io)) {
        const Tiling tiling(block);
        const Tensor masked = masked_scores(a, block.sequence, block.queries(), block.keys());
        for_each_unit(tiling, true, [&](const Unit& unit) {
            const KeyValue kv(block, unit, tiling.group);
            for (const Tile& tile : tiling.tiles(unit)) forward_tile(a, block, masked, kv, tile);
        });
    }
}

namespace {

// Gradients that several tiles add to, in float32.
struct Sums {
    Tensor dkey, dvalue;  // (key heads, K, D), of one unit
    Tensor dpse;          // as the bias, or undefined
};

// Adds left^T x right, (heads, K, rows) x (heads, rows, D), to the gradient of the key heads they share.
void add_to_keys(const Tensor& grad, const KeyValue& kv, const Tile& tile, const Tensor& left, const Tensor& right) {
    const Tensor shared = kv.shared(grad, tile), transposed = left.transpose(-1, -2);
    if (shared.size(0) == tile.heads)
        shared.baddbmm_(transposed, right);
    else
        shared.add_(for_keys(at::bmm(transposed, right), shared.size(0)));
}

void write_rope_parts(const Tensor& grad, const Tensor& plain, const Tensor& rope) {
    const int64_t size = plain.size(-1);
    plain.copy_(grad.narrow(-1, 0, size));
    if (rope.defined()) rope.copy_(grad.narrow(-1, size, rope.size(-1)));
}

void backward_tile(const Attention& a, const Block& block, const Tensor& masked, const KeyValue& kv, const Tile& tile,
                   const AttentionGrad& grad, const Sums& sums) {
    const Tensor key = kv.of(kv.key, tile);
    Scores s = scores_of(a, block, masked, tile, key);
    const Tensor maximum = rows_of(block.softmax_max, tile).narrow(-1, 0, 1);
    const Tensor sum = rows_of(block.softmax_sum, tile).narrow(-1, 0, 1);
    const Tensor weights = exponentials(s, maximum + sum.log());
    const Tensor dout = wide(rows_of(block.dout, tile));
    const Tensor kept = block.kept.defined() ? part(block.kept, tile) : Tensor();
    add_to_keys(sums.dvalue, kv, tile, kept.defined() ? weights * kept : weights, dout);
    Tensor dweights = at::bmm(dout, kv.of(kv.value, tile).transpose(-1, -2));  // (heads, rows, D) x (heads, D, K)
    if (kept.defined()) dweights.mul_(kept);
    const Tensor average = (dout * wide(rows_of(block.out, tile))).sum(-1, true);
    const Tensor dlogits = dweights.sub_(average).mul_(weights);
    const Tensor drope = block.dquery_rope.defined() ? rows_of(block.dquery_rope, tile) : Tensor();
    const Tensor dquery = at::bmm(dlogits, key).mul_(a.scale);  // (heads, rows, K) x (heads, K, D)
    write_rope_parts(dquery, rows_of(block.dquery, tile), drope);
    add_to_keys(sums.dkey, kv, tile, dlogits, s.query);
    if (sums.dpse.defined()) {
        const Tensor target = part(sums.dpse, tile);
        target.add_(dlogits.sum_to_size(target.sizes()), a.pse_type == 1 ? a.scale : 1.0);
    }
    if (grad.dsink.defined() && a.sink.defined()) {
        const Tensor share = (sink_logits(a, tile) - maximum).exp() / divisor(sum);
        grad.dsink.view({-1}).narrow(0, tile.head, tile.heads).sub_((share * average).sum({1, 2}));
    }
}

void backward_unit(const Attention& a, const Block& block, const Tensor& masked, const Tiling& tiling,
                   const Unit& unit, const AttentionGrad& grad, const Tensor& dpse) {
    const KeyValue kv(block, unit, tiling.group);
    const Sums sums{at::zeros_like(kv.key), at::zeros_like(kv.value), dpse};
    for (const Tile& tile : tiling.tiles(unit)) backward_tile(a, block, masked, kv, tile, grad, sums);
    const Tensor drope = block.dkey_rope.defined() ? heads_of(block.dkey_rope, unit) : Tensor();
    write_rope_parts(sums.dkey, heads_of(block.dkey, unit), drope);
    heads_of(block.dvalue, unit).copy_(sums.dvalue);
}

}  // namespace

void attention_backward(const Attention& a, const AttentionGrad& grad) {
    clear(a, {grad.dquery, grad.dquery_rope, grad.dkey, grad.dkey_rope, grad.dvalue});
    if (grad.dsink.defined()) grad.dsink.zero_();
    const bool has_dpse = grad.dpse.defined() && a.pse.defined();
    const Tensor dpse = has_dpse ? at::zeros_like(wide(a.pse)) : Tensor();
    for (const Block& block : blocks_of(a, grad)) {
        const Tiling tiling(block);
        const Tensor masked = masked_scores(a, block.sequence, block.queries(), block.keys());
        const bool apart = !has_dpse && !grad.dsink.defined();
        for_each_unit(tiling, apart, [&](const Unit& unit) {
            backward_unit(a, block, masked, tiling, unit, grad, dpse);
        });
    }
    if (has_dpse) put(grad.dpse, dpse);
}

}  // namespace npu_sim
