#include "hccl/types.h"

namespace npu_sim::hccl {
namespace {

struct TypeInfo {
    HcclDataType type;
    size_t bytes;
    const char* name;
};

constexpr TypeInfo kTypes[] = {
    {HCCL_DATA_TYPE_INT8, 1, "int8"},       {HCCL_DATA_TYPE_INT16, 2, "int16"},
    {HCCL_DATA_TYPE_INT32, 4, "int32"},     {HCCL_DATA_TYPE_FP16, 2, "float16"},
    {HCCL_DATA_TYPE_FP32, 4, "float32"},    {HCCL_DATA_TYPE_INT64, 8, "int64"},
    {HCCL_DATA_TYPE_UINT64, 8, "uint64"},   {HCCL_DATA_TYPE_UINT8, 1, "uint8"},
    {HCCL_DATA_TYPE_UINT16, 2, "uint16"},   {HCCL_DATA_TYPE_UINT32, 4, "uint32"},
    {HCCL_DATA_TYPE_FP64, 8, "float64"},    {HCCL_DATA_TYPE_BFP16, 2, "bfp16"},
    {HCCL_DATA_TYPE_INT128, 16, "int128"},  {HCCL_DATA_TYPE_HIF8, 1, "hif8"},
    {HCCL_DATA_TYPE_FP8E4M3, 1, "fp8e4m3"}, {HCCL_DATA_TYPE_FP8E5M2, 1, "fp8e5m2"},
    {HCCL_DATA_TYPE_FP8E8M0, 1, "fp8e8m0"},
};

constexpr const char* kResults[] = {
    "HCCL_SUCCESS",          "HCCL_E_PARA",         "HCCL_E_PTR",          "HCCL_E_MEMORY",
    "HCCL_E_INTERNAL",       "HCCL_E_NOT_SUPPORT",  "HCCL_E_NOT_FOUND",    "HCCL_E_UNAVAIL",
    "HCCL_E_SYSCALL",        "HCCL_E_TIMEOUT",      "HCCL_E_OPEN_FILE_FAILURE", "HCCL_E_TCP_CONNECT",
    "HCCL_E_ROCE_CONNECT",   "HCCL_E_TCP_TRANSFER", "HCCL_E_ROCE_TRANSFER", "HCCL_E_RUNTIME",
    "HCCL_E_DRV",            "HCCL_E_PROFILING",    "HCCL_E_CCE",          "HCCL_E_NETWORK",
    "HCCL_E_AGAIN",          "HCCL_E_REMOTE",       "HCCL_E_SUSPENDING",   "HCCL_E_OPRETRY_FAIL",
    "HCCL_E_OOM",
};

}  // namespace

size_t element_bytes(HcclDataType type) {
    for (const TypeInfo& info : kTypes)
        if (info.type == type) return info.bytes;
    return 0;
}

const char* type_name(HcclDataType type) {
    for (const TypeInfo& info : kTypes)
        if (info.type == type) return info.name;
    return "unknown type";
}

const char* reduce_name(HcclReduceOp op) {
    switch (op) {
        case HCCL_REDUCE_SUM: return "sum";
        case HCCL_REDUCE_PROD: return "prod";
        case HCCL_REDUCE_MAX: return "max";
        case HCCL_REDUCE_MIN: return "min";
        default: return "unknown reduction";
    }
}

const char* result_name(HcclResult result) {
    const auto index = static_cast<size_t>(result);
    return index < std::size(kResults) ? kResults[index] : "HCCL_E_RESERVED";
}

bool can_reduce(HcclDataType type, HcclReduceOp op) {
    switch (type) {
        case HCCL_DATA_TYPE_INT8:
        case HCCL_DATA_TYPE_INT32:
        case HCCL_DATA_TYPE_INT64:
        case HCCL_DATA_TYPE_FP16:
        case HCCL_DATA_TYPE_FP32:
            return op >= HCCL_REDUCE_SUM && op <= HCCL_REDUCE_MIN;
        case HCCL_DATA_TYPE_INT16:
        case HCCL_DATA_TYPE_BFP16:
            return op == HCCL_REDUCE_SUM || op == HCCL_REDUCE_MAX || op == HCCL_REDUCE_MIN;
        default:
            return false;
    }
}

HcclResult refuse(HcclResult result, const std::string& message) {
    // The ACL error code only travels with the message: HCCL's callers look at the HcclResult.
    fail(ACL_ERROR_RT_INTERNAL_ERROR, message);
    return result;
}

}  // namespace npu_sim::hccl
