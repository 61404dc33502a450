// The gradient entry points of CANN's flash attention: one computation, several generations of argument lists.
#include "compute/fused/attention_handles.h"

namespace npu_sim {
namespace {

struct GradHandles {
    const aclTensor *dout = nullptr, *softmax_max = nullptr, *softmax_sum = nullptr, *out = nullptr;
    const aclTensor *dquery = nullptr, *dquery_rope = nullptr, *dkey = nullptr, *dkey_rope = nullptr;
    const aclTensor *dvalue = nullptr, *dpse = nullptr, *dsink = nullptr;
};

aclError prepare_backward(const char* name, const AttentionHandles& given, const GradHandles& g, uint64_t* workspace,
                          aclOpExecutor** executor) {
    const auto make = [&]() -> std::function<void()> {
        const Attention attention = take(given);
        // torch_npu passes empty tensors for the gradients of absent arguments.
        const auto if_given = [](const aclTensor* gradient, const at::Tensor& argument) {
            return argument.defined() ? take(gradient) : at::Tensor();
        };
        const AttentionGrad grad{take(g.dout), take(g.softmax_max), take(g.softmax_sum), take(g.out), take(g.dquery),
                                 if_given(g.dquery_rope, attention.query_rope), take(g.dkey),
                                 if_given(g.dkey_rope, attention.key_rope), take(g.dvalue),
                                 if_given(g.dpse, attention.pse), if_given(g.dsink, attention.sink)};
        TORCH_CHECK(grad.softmax_max.defined() && grad.softmax_sum.defined() && grad.out.defined(),
                    "softmax_max, softmax_sum and attention_in of the forward are needed");
        return [attention, grad] { attention_backward(attention, grad); };
    };
    return prepare_executor(name, make, workspace, executor);
}

}  // namespace

NPU_SIM_API int aclnnFlashAttentionScoreGradGetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dout,
    const aclTensor* pse, const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask,
    const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out,
    const aclIntArray* prefix, double scale, double keep_prob, int64_t pre_tokens, int64_t next_tokens,
    int64_t heads, char* layout, int64_t, int64_t sparse_mode, const aclTensor* dquery, const aclTensor* dkey,
    const aclTensor* dvalue, const aclTensor* dpse, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .scale = scale, .keep_prob = keep_prob,
        .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads, .layout = layout,
        .sparse_mode = sparse_mode};
    const GradHandles grads{.dout = dout, .softmax_max = softmax_max, .softmax_sum = softmax_sum, .out = out,
        .dquery = dquery, .dkey = dkey, .dvalue = dvalue, .dpse = dpse};
    return prepare_backward("aclnnFlashAttentionScoreGrad", given, grads, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionScoreGrad)

NPU_SIM_API int aclnnFlashAttentionScoreGradV2GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dout,
    const aclTensor* pse, const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask,
    const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out,
    const aclIntArray* prefix, const aclIntArray*, const aclIntArray*, double scale, double keep_prob,
    int64_t pre_tokens, int64_t next_tokens, int64_t heads, char* layout, int64_t, int64_t sparse_mode,
    int64_t pse_type, const aclTensor* dquery, const aclTensor* dkey, const aclTensor* dvalue,
    const aclTensor* dpse, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .scale = scale, .keep_prob = keep_prob,
        .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads, .layout = layout,
        .sparse_mode = sparse_mode, .pse_type = pse_type};
    const GradHandles grads{.dout = dout, .softmax_max = softmax_max, .softmax_sum = softmax_sum, .out = out,
        .dquery = dquery, .dkey = dkey, .dvalue = dvalue, .dpse = dpse};
    return prepare_backward("aclnnFlashAttentionScoreGradV2", given, grads, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionScoreGradV2)

NPU_SIM_API int aclnnFlashAttentionScoreGradV3GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dout,
    const aclTensor* pse, const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask,
    const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out,
    const aclTensor* sink, const aclIntArray* prefix, const aclIntArray*, const aclIntArray*, double scale,
    double keep_prob, int64_t pre_tokens, int64_t next_tokens, int64_t heads, char* layout, int64_t,
    int64_t sparse_mode, int64_t pse_type, const aclTensor* dquery, const aclTensor* dkey, const aclTensor* dvalue,
    const aclTensor* dpse, const aclTensor* dsink, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .sink = sink, .prefix = prefix, .scale = scale,
        .keep_prob = keep_prob, .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads,
        .layout = layout, .sparse_mode = sparse_mode, .pse_type = pse_type};
    const GradHandles grads{.dout = dout, .softmax_max = softmax_max, .softmax_sum = softmax_sum, .out = out,
        .dquery = dquery, .dkey = dkey, .dvalue = dvalue, .dpse = dpse, .dsink = dsink};
    return prepare_backward("aclnnFlashAttentionScoreGradV3", given, grads, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionScoreGradV3)

NPU_SIM_API int aclnnFlashAttentionUnpaddingScoreGradGetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dout,
    const aclTensor* pse, const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask,
    const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out,
    const aclIntArray* prefix, const aclIntArray* query_ends, const aclIntArray* key_ends, double scale,
    double keep_prob, int64_t pre_tokens, int64_t next_tokens, int64_t heads, char* layout, int64_t,
    int64_t sparse_mode, const aclTensor* dquery, const aclTensor* dkey, const aclTensor* dvalue,
    const aclTensor* dpse, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .query_ends = query_ends,
        .key_ends = key_ends, .scale = scale, .keep_prob = keep_prob, .pre_tokens = pre_tokens,
        .next_tokens = next_tokens, .heads = heads, .layout = layout, .sparse_mode = sparse_mode};
    const GradHandles grads{.dout = dout, .softmax_max = softmax_max, .softmax_sum = softmax_sum, .out = out,
        .dquery = dquery, .dkey = dkey, .dvalue = dvalue, .dpse = dpse};
    return prepare_backward("aclnnFlashAttentionUnpaddingScoreGrad", given, grads, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionUnpaddingScoreGrad)

NPU_SIM_API int aclnnFlashAttentionUnpaddingScoreGradV2GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dout,
    const aclTensor* pse, const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask,
    const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out,
    const aclIntArray* prefix, const aclIntArray* query_ends, const aclIntArray* key_ends, const aclIntArray*,
    const aclIntArray*, double scale, double keep_prob, int64_t pre_tokens, int64_t next_tokens, int64_t heads,
    char* layout, int64_t, int64_t sparse_mode, int64_t pse_type, const aclTensor* dquery, const aclTensor* dkey,
    const aclTensor* dvalue, const aclTensor* dpse, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .query_ends = query_ends,
        .key_ends = key_ends, .scale = scale, .keep_prob = keep_prob, .pre_tokens = pre_tokens,
        .next_tokens = next_tokens, .heads = heads, .layout = layout, .sparse_mode = sparse_mode,
        .pse_type = pse_type};
    const GradHandles grads{.dout = dout, .softmax_max = softmax_max, .softmax_sum = softmax_sum, .out = out,
        .dquery = dquery, .dkey = dkey, .dvalue = dvalue, .dpse = dpse};
    return prepare_backward("aclnnFlashAttentionUnpaddingScoreGradV2", given, grads, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionUnpaddingScoreGradV2)

NPU_SIM_API int aclnnFlashAttentionUnpaddingScoreGradV3GetWorkspaceSize(
    const aclTensor* query, const aclTensor* query_rope, const aclTensor* key, const aclTensor* key_rope,
    const aclTensor* value, const aclTensor* dout, const aclTensor* pse, const aclTensor* drop_bits,
    const aclTensor* padding_mask, const aclTensor* mask, const aclTensor* softmax_max,
    const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out, const aclIntArray* prefix,
    const aclIntArray* query_ends, const aclIntArray* key_ends, const aclIntArray*, const aclIntArray*,
    double scale, double keep_prob, int64_t pre_tokens, int64_t next_tokens, int64_t heads, char* layout, int64_t,
    int64_t sparse_mode, int64_t pse_type, const aclTensor* dquery, const aclTensor* dquery_rope,
    const aclTensor* dkey, const aclTensor* dkey_rope, const aclTensor* dvalue, const aclTensor* dpse,
    uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .query_rope = query_rope, .key = key, .key_rope = key_rope,
        .value = value, .pse = pse, .drop_bits = drop_bits, .padding_mask = padding_mask, .mask = mask,
        .prefix = prefix, .query_ends = query_ends, .key_ends = key_ends, .scale = scale, .keep_prob = keep_prob,
        .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads, .layout = layout,
        .sparse_mode = sparse_mode, .pse_type = pse_type};
    const GradHandles grads{.dout = dout, .softmax_max = softmax_max, .softmax_sum = softmax_sum, .out = out,
        .dquery = dquery, .dquery_rope = dquery_rope, .dkey = dkey, .dkey_rope = dkey_rope, .dvalue = dvalue,
        .dpse = dpse};
    return prepare_backward("aclnnFlashAttentionUnpaddingScoreGradV3", given, grads, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionUnpaddingScoreGradV3)

NPU_SIM_API int aclnnFlashAttentionUnpaddingScoreGradV4GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dout,
    const aclTensor* pse, const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask,
    const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out,
    const aclIntArray* prefix, const aclIntArray* query_ends, const aclIntArray* key_ends, double scale,
    double keep_prob, int64_t pre_tokens, int64_t next_tokens, int64_t heads, char* layout, int64_t,
    int64_t sparse_mode, const aclTensor* dquery, const aclTensor* dkey, const aclTensor* dvalue,
    const aclTensor* dpse, char* softmax_layout, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .query_ends = query_ends,
        .key_ends = key_ends, .scale = scale, .keep_prob = keep_prob, .pre_tokens = pre_tokens,
        .next_tokens = next_tokens, .heads = heads, .layout = layout, .sparse_mode = sparse_mode,
        .softmax_layout = softmax_layout};
    const GradHandles grads{.dout = dout, .softmax_max = softmax_max, .softmax_sum = softmax_sum, .out = out,
        .dquery = dquery, .dkey = dkey, .dvalue = dvalue, .dpse = dpse};
    return prepare_backward("aclnnFlashAttentionUnpaddingScoreGradV4", given, grads, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionUnpaddingScoreGradV4)

NPU_SIM_API int aclnnFlashAttentionUnpaddingScoreGradV5GetWorkspaceSize(
    const aclTensor* query, const aclTensor* query_rope, const aclTensor* key, const aclTensor* key_rope,
    const aclTensor* value, const aclTensor* dout, const aclTensor* pse, const aclTensor* drop_bits,
    const aclTensor* padding_mask, const aclTensor* mask, const aclTensor* softmax_max,
    const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out, const aclTensor* sink,
    const aclIntArray* prefix, const aclIntArray* query_ends, const aclIntArray* key_ends, const aclIntArray*,
    const aclIntArray*, double scale, double keep_prob, int64_t pre_tokens, int64_t next_tokens, int64_t heads,
    char* layout, int64_t, int64_t sparse_mode, int64_t pse_type, char* softmax_layout, const aclTensor* dquery,
    const aclTensor* dquery_rope, const aclTensor* dkey, const aclTensor* dkey_rope, const aclTensor* dvalue,
    const aclTensor* dpse, const aclTensor* dsink, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .query_rope = query_rope, .key = key, .key_rope = key_rope,
        .value = value, .pse = pse, .drop_bits = drop_bits, .padding_mask = padding_mask, .mask = mask,
        .sink = sink, .prefix = prefix, .query_ends = query_ends, .key_ends = key_ends, .scale = scale,
        .keep_prob = keep_prob, .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads,
        .layout = layout, .sparse_mode = sparse_mode, .pse_type = pse_type, .softmax_layout = softmax_layout};
    const GradHandles grads{.dout = dout, .softmax_max = softmax_max, .softmax_sum = softmax_sum, .out = out,
        .dquery = dquery, .dquery_rope = dquery_rope, .dkey = dkey, .dkey_rope = dkey_rope, .dvalue = dvalue,
        .dpse = dpse, .dsink = dsink};
    return prepare_backward("aclnnFlashAttentionUnpaddingScoreGradV5", given, grads, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionUnpaddingScoreGradV5)

}  // namespace npu_sim
