// The forward entry points of CANN's flash attention: one computation, several generations of argument lists.
#include "compute/fused/attention_handles.h"

namespace npu_sim {
namespace {

struct ResultHandles {
    const aclTensor *softmax_max, *softmax_sum, *out;
};

aclError prepare_forward(const char* name, const AttentionHandles& given, const ResultHandles& results,
                         uint64_t* workspace, aclOpExecutor** executor) {
    const auto make = [&]() -> std::function<void()> {
        const AttentionResult result{take(results.softmax_max), take(results.softmax_sum), take(results.out)};
        return [attention = take(given), result] { attention_forward(attention, result); };
    };
    return prepare_executor(name, make, workspace, executor);
}

}  // namespace

NPU_SIM_API int aclnnFlashAttentionScoreGetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
    const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask, const aclIntArray* prefix,
    double scale, double keep_prob, int64_t pre_tokens, int64_t next_tokens, int64_t heads, char* layout, int64_t,
    int64_t sparse_mode, const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor*,
    const aclTensor* out, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .scale = scale, .keep_prob = keep_prob,
        .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads, .layout = layout,
        .sparse_mode = sparse_mode};
    return prepare_forward("aclnnFlashAttentionScore", given, {softmax_max, softmax_sum, out}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionScore)

NPU_SIM_API int aclnnFlashAttentionScoreV2GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
    const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask, const aclIntArray* prefix,
    const aclIntArray*, const aclIntArray*, double scale, double keep_prob, int64_t pre_tokens, int64_t next_tokens,
    int64_t heads, char* layout, int64_t, int64_t sparse_mode, int64_t pse_type, const aclTensor* softmax_max,
    const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out, uint64_t* workspace,
    aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .scale = scale, .keep_prob = keep_prob,
        .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads, .layout = layout,
        .sparse_mode = sparse_mode, .pse_type = pse_type};
    return prepare_forward("aclnnFlashAttentionScoreV2", given, {softmax_max, softmax_sum, out}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionScoreV2)

NPU_SIM_API int aclnnFlashAttentionScoreV3GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
    const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask, const aclTensor* sink,
    const aclIntArray* prefix, const aclIntArray*, const aclIntArray*, double scale, double keep_prob,
    int64_t pre_tokens, int64_t next_tokens, int64_t heads, char* layout, int64_t, int64_t sparse_mode,
    int64_t pse_type, const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor*,
    const aclTensor* out, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .sink = sink, .prefix = prefix, .scale = scale,
        .keep_prob = keep_prob, .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads,
        .layout = layout, .sparse_mode = sparse_mode, .pse_type = pse_type};
    return prepare_forward("aclnnFlashAttentionScoreV3", given, {softmax_max, softmax_sum, out}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionScoreV3)

NPU_SIM_API int aclnnFlashAttentionVarLenScoreGetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
    const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask, const aclIntArray* prefix,
    const aclIntArray* query_ends, const aclIntArray* key_ends, double scale, double keep_prob, int64_t pre_tokens,
    int64_t next_tokens, int64_t heads, char* layout, int64_t, int64_t sparse_mode, const aclTensor* softmax_max,
    const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out, uint64_t* workspace,
    aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .query_ends = query_ends,
        .key_ends = key_ends, .scale = scale, .keep_prob = keep_prob, .pre_tokens = pre_tokens,
        .next_tokens = next_tokens, .heads = heads, .layout = layout, .sparse_mode = sparse_mode};
    return prepare_forward("aclnnFlashAttentionVarLenScore", given, {softmax_max, softmax_sum, out}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionVarLenScore)

NPU_SIM_API int aclnnFlashAttentionVarLenScoreV2GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
    const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask, const aclIntArray* prefix,
    const aclIntArray* query_ends, const aclIntArray* key_ends, const aclIntArray*, const aclIntArray*,
    double scale, double keep_prob, int64_t pre_tokens, int64_t next_tokens, int64_t heads, char* layout, int64_t,
    int64_t sparse_mode, int64_t pse_type, const aclTensor* softmax_max, const aclTensor* softmax_sum,
    const aclTensor*, const aclTensor* out, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .query_ends = query_ends,
        .key_ends = key_ends, .scale = scale, .keep_prob = keep_prob, .pre_tokens = pre_tokens,
        .next_tokens = next_tokens, .heads = heads, .layout = layout, .sparse_mode = sparse_mode,
        .pse_type = pse_type};
    return prepare_forward("aclnnFlashAttentionVarLenScoreV2", given, {softmax_max, softmax_sum, out}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionVarLenScoreV2)

NPU_SIM_API int aclnnFlashAttentionVarLenScoreV3GetWorkspaceSize(
    const aclTensor* query, const aclTensor* query_rope, const aclTensor* key, const aclTensor* key_rope,
    const aclTensor* value, const aclTensor* pse, const aclTensor* drop_bits, const aclTensor* padding_mask,
    const aclTensor* mask, const aclIntArray* prefix, const aclIntArray* query_ends, const aclIntArray* key_ends,
    const aclIntArray*, const aclIntArray*, double scale, double keep_prob, int64_t pre_tokens, int64_t next_tokens,
    int64_t heads, char* layout, int64_t, int64_t sparse_mode, int64_t pse_type, const aclTensor* softmax_max,
    const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out, uint64_t* workspace,
    aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .query_rope = query_rope, .key = key, .key_rope = key_rope,
        .value = value, .pse = pse, .drop_bits = drop_bits, .padding_mask = padding_mask, .mask = mask,
        .prefix = prefix, .query_ends = query_ends, .key_ends = key_ends, .scale = scale, .keep_prob = keep_prob,
        .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads, .layout = layout,
        .sparse_mode = sparse_mode, .pse_type = pse_type};
    return prepare_forward("aclnnFlashAttentionVarLenScoreV3", given, {softmax_max, softmax_sum, out}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionVarLenScoreV3)

NPU_SIM_API int aclnnFlashAttentionVarLenScoreV4GetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
    const aclTensor* drop_bits, const aclTensor* padding_mask, const aclTensor* mask, const aclIntArray* prefix,
    const aclIntArray* query_ends, const aclIntArray* key_ends, double scale, double keep_prob, int64_t pre_tokens,
    int64_t next_tokens, int64_t heads, char* layout, int64_t, int64_t sparse_mode, char* softmax_layout,
    const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out,
    uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .key = key, .value = value, .pse = pse, .drop_bits = drop_bits,
        .padding_mask = padding_mask, .mask = mask, .prefix = prefix, .query_ends = query_ends,
        .key_ends = key_ends, .scale = scale, .keep_prob = keep_prob, .pre_tokens = pre_tokens,
        .next_tokens = next_tokens, .heads = heads, .layout = layout, .sparse_mode = sparse_mode,
        .softmax_layout = softmax_layout};
    return prepare_forward("aclnnFlashAttentionVarLenScoreV4", given, {softmax_max, softmax_sum, out}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionVarLenScoreV4)

NPU_SIM_API int aclnnFlashAttentionVarLenScoreV5GetWorkspaceSize(
    const aclTensor* query, const aclTensor* query_rope, const aclTensor* key, const aclTensor* key_rope,
    const aclTensor* value, const aclTensor* pse, const aclTensor* drop_bits, const aclTensor* padding_mask,
    const aclTensor* mask, const aclTensor* sink, const aclIntArray* prefix, const aclIntArray* query_ends,
    const aclIntArray* key_ends, const aclIntArray*, const aclIntArray*, double scale, double keep_prob,
    int64_t pre_tokens, int64_t next_tokens, int64_t heads, char* layout, int64_t, int64_t sparse_mode,
    int64_t pse_type, char* softmax_layout, const aclTensor* softmax_max, const aclTensor* softmax_sum,
    const aclTensor*, const aclTensor* out, uint64_t* workspace, aclOpExecutor** executor) {
    const AttentionHandles given{.query = query, .query_rope = query_rope, .key = key, .key_rope = key_rope,
        .value = value, .pse = pse, .drop_bits = drop_bits, .padding_mask = padding_mask, .mask = mask,
        .sink = sink, .prefix = prefix, .query_ends = query_ends, .key_ends = key_ends, .scale = scale,
        .keep_prob = keep_prob, .pre_tokens = pre_tokens, .next_tokens = next_tokens, .heads = heads,
        .layout = layout, .sparse_mode = sparse_mode, .pse_type = pse_type, .softmax_layout = softmax_layout};
    return prepare_forward("aclnnFlashAttentionVarLenScoreV5", given, {softmax_max, softmax_sum, out}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnFlashAttentionVarLenScoreV5)

}  // namespace npu_sim
