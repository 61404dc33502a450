// Names and sizes of HCCL's data types and operators, and how a refusal is reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "hccl/hccl.h"
#include "runtime/sim.h"

namespace npu_sim::hccl {

// Bytes of one element, or 0 for a value that is no HCCL data type.
size_t element_bytes(HcclDataType type);

// Name of the data type as HCCL's messages write it, e.g. "bfp16".
const char* type_name(HcclDataType type);

// Name of the reduction, e.g. "sum".
const char* reduce_name(HcclReduceOp op);

// Name of the result, e.g. "HCCL_E_TIMEOUT".
const char* result_name(HcclResult result);

// True when an Atlas A2 card reduces this type with this operator. It takes int8/16/32/64, float16,
// float32 and bfp16, but no product of int16 or bfp16; the simulated card refuses what the real one refuses.
bool can_reduce(HcclDataType type, HcclReduceOp op);

// Keeps `message` for aclGetRecentErrMsg() and returns `result`, so that `return refuse(…)` reads well.
HcclResult refuse(HcclResult result, const std::string& message);

}  // namespace npu_sim::hccl
