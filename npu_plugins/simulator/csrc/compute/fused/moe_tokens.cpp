// Mixture of experts: tokens copied to the order of their experts, and summed back with their probabilities.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "compute/fused/math.h"
#include "compute/opapi/operator.h"

namespace npu_sim {
namespace {

using at::Tensor;

void refuse_padded(bool padded) { TORCH_CHECK(!padded, "padded_mode=True is not supported"); }

// Rows of `source` by index; an index past the end, of a dropped token, gives zeros.
Tensor rows_or_zero(const Tensor& source, const Tensor& index) {
    if (source.size(0) == 0) return at::zeros({index.numel(), source.size(1)}, source.options());
    const Tensor rows = source.index_select(0, index.clamp_max(source.size(0) - 1));
    return rows.masked_fill((index >= source.size(0)).unsqueeze(1), 0);
}

// The opposite: row i goes to index[i] of a tensor with `rows` rows; dropped ones go nowhere.
Tensor scatter_rows(const Tensor& source, const Tensor& index, int64_t rows) {
    return at::zeros({rows + 1, source.size(1)}, source.options())
        .index_copy(0, index.clamp_max(rows), source)
        .narrow(0, 0, rows);
}

// `order[i]` of the outputs is the place among the permuted rows of copy i, copies in the order of the tokens.
void permute(const Tensor& tokens, const Tensor& experts, int64_t kept, bool padded, const Tensor& permuted,
             const Tensor& order) {
    refuse_padded(padded);
    const int64_t copies = experts.dim() == 1 ? 1 : experts.size(1);
    const Tensor by_expert = experts.flatten().argsort(/*stable=*/true, 0, false);
    put(permuted, tokens.index_select(0, by_expert.narrow(0, 0, kept).floor_divide(copies)));
    put(order, by_expert.argsort());
}

Tensor sum_of_copies(const Tensor& permuted, const Tensor& order, int64_t copies, const Tensor& probabilities) {
    Tensor rows = rows_or_zero(wide(permuted), order.to(at::kLong)).unflatten(0, {-1, copies});
    if (probabilities.defined()) rows = rows * wide(probabilities).view({-1, copies, 1});
    return rows.sum(1);
}

void permute_grad(const Tensor& dpermuted, const Tensor& order, int64_t copies, bool padded, const Tensor& dtokens) {
    refuse_padded(padded);
    put(dtokens, sum_of_copies(dpermuted, order, copies, {}));
}

void unpermute(const Tensor& permuted, const Tensor& order, const Tensor& probabilities, bool padded, const Ints&,
               const Tensor& tokens) {
    refuse_padded(padded);
    put(tokens, sum_of_copies(permuted, order, probabilities.defined() ? probabilities.size(1) : 1, probabilities));
}

struct UnpermuteGrad {
    Tensor dpermuted, dprobabilities;  // the second by copy, in the order of the tokens
};
UnpermuteGrad unpermute_grad_of(const Tensor& permuted, const Tensor& dtokens, const Tensor& order,
                                const Tensor& probabilities, int64_t copies, int64_t rows) {
    const Tensor index = order.to(at::kLong);
    const Tensor by_copy = wide(dtokens).repeat_interleave(copies, 0);
    if (!probabilities.defined()) return {scatter_rows(by_copy, index, rows), {}};
    const Tensor weighted = by_copy * wide(probabilities).reshape({-1, 1});
    TORCH_CHECK(permuted.defined(), "the permuted tokens are needed for the gradient of the probabilities");
    return {scatter_rows(weighted, index, rows), (rows_or_zero(wide(permuted), index) * by_copy).sum(1)};
}

void unpermute_grad(const Tensor& permuted, const Tensor& dtokens, const Tensor& order, const Tensor& probabilities,
                    bool padded, const Ints&, const Tensor& dpermuted, const Tensor& dprobabilities) {
    refuse_padded(padded);
    const int64_t copies = probabilities.defined() ? probabilities.size(1) : 1;
    const auto grad = unpermute_grad_of(permuted, dtokens, order, probabilities, copies, dpermuted.size(0));
    put(dpermuted, grad.dpermuted);
    if (probabilities.defined()) put(dprobabilities, grad.dprobabilities);
}

// ---- the same, driven by a boolean map (tokens, experts)

// With a capacity: the first `capacity` tokens of each expert, those that chose it first. (experts * capacity)
Tensor first_tokens(const Tensor& map, int64_t capacity) {
    return map.to(at::kChar).t().contiguous().argsort(true, -1, true).narrow(1, 0, capacity).flatten();
}

// Where position (expert, slot) of a capacity layout lies in a flattened (experts, tokens) tensor.
Tensor places(const Tensor& tokens_of_slots, int64_t tokens, int64_t experts) {
    const int64_t capacity = tokens_of_slots.numel() / experts;
    const Tensor expert = at::arange(experts, at::kLong).repeat_interleave(capacity);
    return expert * tokens + tokens_of_slots.to(at::kLong);
}

void permute_by_map(const Tensor& tokens, const Tensor& map, const Tensor& probabilities, int64_t kept, bool capacity,
                    const Tensor& permuted, const Tensor& permuted_probabilities, const Tensor& order) {
    const int64_t experts = map.size(1), count = map.size(0);
    Tensor token;
    if (capacity) {
        token = first_tokens(map, kept / experts);
        put(order, token);
    } else {
        token = at::arange(count, at::kLong).expand({experts, count}).masked_select(map.to(at::kBool).t());
        put(order, token.argsort(true, 0, false));
    }
    put(permuted, tokens.index_select(0, token));
    if (!probabilities.defined()) return;
    const Tensor by_expert = probabilities.view(map.sizes()).t().contiguous();
    put(permuted_probabilities, capacity ? by_expert.flatten().index_select(0, places(token, count, experts))
                                         : by_expert.masked_select(map.to(at::kBool).t()));
}

void permute_by_map_grad(const Tensor& dpermuted, const Tensor& dpermuted_probabilities, const Tensor& order,
                         const Tensor& map, int64_t experts, int64_t tokens, bool capacity, const Tensor& dtokens,
                         const Tensor& dprobabilities) {
    const Tensor index = order.to(at::kLong);
    if (capacity)
        put(dtokens, at::zeros(dtokens.sizes(), wide(dpermuted).options()).index_add(0, index, wide(dpermuted)));
    else
        put(dtokens, sum_of_copies(dpermuted, order, order.numel() / tokens, {}));
    if (!dpermuted_probabilities.defined() || !dprobabilities.defined()) return;
    const Tensor by_expert = at::zeros({experts, tokens}, dpermuted_probabilities.options());
    put(dprobabilities.t(), capacity
            ? by_expert.flatten().index_copy(0, places(index, tokens, experts), dpermuted_probabilities)
            : by_expert.masked_scatter(map.to(at::kBool).t(), dpermuted_probabilities));
}

void unpermute_by_map(const Tensor& permuted, const Tensor& order, const Tensor& map, const Tensor& probabilities,
                      bool capacity, const Ints&, const Tensor& tokens, const Tensor& slot_by_token,
                      const Tensor& token_sorted, const Tensor& copied_probabilities) {
    const Tensor index = order.to(at::kLong);
    if (!capacity) {
        const int64_t copies = permuted.size(0) / map.size(0);
        Tensor chosen;
        if (probabilities.defined()) chosen = probabilities.masked_select(map.to(at::kBool));
        put(tokens, sum_of_copies(permuted, order, copies, chosen));
        if (probabilities.defined()) put(copied_probabilities, chosen);
        return;
    }
    Tensor rows = wide(permuted);
    if (probabilities.defined()) {
        const Tensor chosen = probabilities.t().flatten().index_select(
            0, places(index, probabilities.size(0), probabilities.size(1)));
        put(copied_probabilities, chosen);
        rows = rows * wide(chosen).unsqueeze(1);
    }
    put(tokens, at::zeros(tokens.sizes(), rows.options()).index_add(0, index, rows));
    const auto [sorted, slots] = index.sort(/*stable=*/true, 0, false);
    put(token_sorted, sorted);
    put(slot_by_token, slots);
}

void unpermute_by_map_grad(const Tensor& dtokens, const Tensor& slots, const Tensor& token_sorted, const Tensor& map,
                           const Tensor& permuted, const Tensor& probabilities, bool capacity, const Ints&,
                           const Tensor& dpermuted, const Tensor& dprobabilities) {
    const Tensor index = slots.to(at::kLong);
    if (!capacity) {
        const int64_t copies = index.numel() / map.size(0);
        Tensor chosen;
        if (probabilities.defined()) chosen = probabilities.masked_select(map.to(at::kBool));
        const auto grad = unpermute_grad_of(permuted, dtokens, slots, chosen, copies, dpermuted.size(0));
        put(dpermuted, grad.dpermuted);
        if (probabilities.defined())
            put(dprobabilities, at::zeros(map.sizes(), grad.dprobabilities.options())
                                    .masked_scatter(map.to(at::kBool), grad.dprobabilities));
        return;
    }
    const Tensor token = at::zeros({index.numel()}, at::kLong).index_copy(0, index, token_sorted.to(at::kLong));
    const Tensor by_slot = wide(dtokens).index_select(0, token);
    if (!probabilities.defined()) return put(dpermuted, by_slot);
    const Tensor place = places(token, probabilities.size(0), probabilities.size(1));
    put(dpermuted, by_slot * wide(probabilities).t().flatten().index_select(0, place).unsqueeze(1));
    const Tensor dchosen = (by_slot * wide(permuted)).sum(1);
    put(dprobabilities.t(), at::zeros({probabilities.numel()}, dchosen.options())
                                .index_copy(0, place, dchosen)
                                .view(probabilities.t().sizes()));
}

}  // namespace

NPU_SIM_ACLNN(aclnnMoeTokenPermute,
              (const aclTensor* tokens, const aclTensor* experts, int64_t kept, bool padded, const aclTensor* permuted,
               const aclTensor* order),
              permute, tokens, experts, kept, padded, permuted, order)
NPU_SIM_ACLNN(aclnnMoeTokenPermuteGrad,
              (const aclTensor* dpermuted, const aclTensor* order, int64_t copies, bool padded,
               const aclTensor* dtokens),
              permute_grad, dpermuted, order, copies, padded, dtokens)
NPU_SIM_ACLNN(aclnnMoeTokenUnpermute,
              (const aclTensor* permuted, const aclTensor* order, const aclTensor* probabilities, bool padded,
               const aclIntArray* shape, const aclTensor* tokens),
              unpermute, permuted, order, probabilities, padded, shape, tokens)
NPU_SIM_ACLNN(aclnnMoeTokenUnpermuteGrad,
              (const aclTensor* permuted, const aclTensor* dtokens, const aclTensor* order,
               const aclTensor* probabilities, bool padded, const aclIntArray* shape, const aclTensor* dpermuted,
               const aclTensor* dprobabilities),
              unpermute_grad, permuted, dtokens, order, probabilities, padded, shape, dpermuted, dprobabilities)
NPU_SIM_ACLNN(aclnnMoeTokenPermuteWithRoutingMap,
              (const aclTensor* tokens, const aclTensor* map, const aclTensor* probabilities, int64_t kept,
               bool capacity, const aclTensor* permuted, const aclTensor* permuted_probabilities,
               const aclTensor* order),
              permute_by_map, tokens, map, probabilities, kept, capacity, permuted, permuted_probabilities, order)
NPU_SIM_ACLNN(aclnnMoeTokenPermuteWithRoutingMapGrad,
              (const aclTensor* dpermuted, const aclTensor* dpermuted_probabilities, const aclTensor* order,
               const aclTensor* map, int64_t experts, int64_t tokens, bool capacity, const aclTensor* dtokens,
               const aclTensor* dprobabilities),
              permute_by_map_grad, dpermuted, dpermuted_probabilities, order, map, experts, tokens, capacity, dtokens,
              dprobabilities)
NPU_SIM_ACLNN(aclnnMoeTokenUnpermuteWithRoutingMap,
              (const aclTensor* permuted, const aclTensor* order, const aclTensor* map, const aclTensor* probabilities,
               bool capacity, const aclIntArray* shape, const aclTensor* tokens, const aclTensor* slots,
               const aclTensor* token_sorted, const aclTensor* copied_probabilities),
              unpermute_by_map, permuted, order, map, probabilities, capacity, shape, tokens, slots, token_sorted,
              copied_probabilities)
NPU_SIM_ACLNN(aclnnMoeTokenUnpermuteWithRoutingMapGrad,
              (const aclTensor* dtokens, const aclTensor* slots, const aclTensor* token_sorted, const aclTensor* map,
               const aclTensor* permuted, const aclTensor* probabilities, bool capacity, const aclIntArray* shape,
               const aclTensor* dpermuted, const aclTensor* dprobabilities),
              unpermute_by_map_grad, dtokens, slots, token_sorted, map, permuted, probabilities, capacity, shape,
              dpermuted, dprobabilities)

}  // namespace npu_sim
