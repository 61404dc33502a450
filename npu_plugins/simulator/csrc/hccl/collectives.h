// The collective operations, on the stream's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "hccl/comm.h"

namespace npu_sim::hccl {

// A collective as one rank asks for it. Byte counts and offsets are of this rank's buffers.
struct Collective {
    Kind kind = Kind::kBarrier;
    HcclDataType type = HCCL_DATA_TYPE_INT8;
    HcclReduceOp op = HCCL_REDUCE_RESERVED;
    uint32_t root = 0;
    uint64_t count = 0;  // elements; must be equal on all ranks, so 0 for the V operations
    const char* send = nullptr;
    uint64_t send_bytes = 0;
    uint64_t send_offset = 0;  // of `send` in the rank's HBM
    char* recv = nullptr;
    uint64_t recv_bytes = 0;
    uint64_t recv_offset = 0;
    std::vector<Piece> sent;      // V operations: what goes to each rank, within `send`
    std::vector<Piece> received;  // V operations: where what comes from each rank goes, within `recv`
};

// Runs it. Throws CommFailure.
void run_collective(Comm& comm, const Collective& asked, const Label& label);

}  // namespace npu_sim::hccl
