// Point-to-point operations, on the stream's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "hccl/comm.h"

namespace npu_sim::hccl {

// One send or receive.
struct Transfer {
    bool is_send;
    uint32_t peer;
    HcclDataType type;
    uint64_t count;   // elements
    char* buffer;
    uint64_t offset;  // of `buffer` in this rank's HBM
};

// Runs all of them at once, those with the same peer and direction in the order given. A send is over when the
// receive has taken it, as on a card. Throws CommFailure.
void run_transfers(Comm& comm, const std::vector<Transfer>& transfers, const Label& label);

}  // namespace npu_sim::hccl
