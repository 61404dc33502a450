// Checks that all HCCL functions make on their arguments.
#pragma once

#include <cstdint>
#include <string>

#include "hccl/comm.h"

namespace npu_sim::hccl {

// Collects the first objection to a call, as text and HcclResult.
class Checks {
  public:
    Checks(const char* function, const Comm& comm) : function_(function), comm_(comm) {}

    Checks& type(HcclDataType type);
    // Bytes of `count` elements; objects, and gives 0, when no memory could hold them.
    uint64_t bytes_of(HcclDataType type, uint64_t count);
    Checks& reduction(HcclDataType type, HcclReduceOp op);
    Checks& peer(const char* role, uint32_t rank);
    Checks& that(bool holds, HcclResult otherwise, const std::string& why);
    // `bytes` bytes at `pointer` lie in the memory of the communicator's device; sets `*offset` in it. Nothing
    // is asked of a buffer without bytes.
    Checks& buffer(const char* role, const void* pointer, uint64_t bytes, uint64_t* offset);

    bool passed() const { return result_ == HCCL_SUCCESS; }
    // Keeps the objection for aclGetRecentErrMsg() and returns its code.
    HcclResult report() const { return refuse(result_, std::string(function_) + ": " + why_); }

  private:
    const char* function_;
    const Comm& comm_;
    HcclResult result_ = HCCL_SUCCESS;
    std::string why_;
};

}  // namespace npu_sim::hccl
