// How a rank meets the others of its communicator.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "hccl/config.h"
#include "hccl/control.h"
#include "hccl/peer_memory.h"

namespace npu_sim::hccl {

// The communicator did not come about; `result` is what HCCL's caller gets.
class RendezvousError : public std::runtime_error {
  public:
    RendezvousError(HcclResult result, const std::string& message) : std::runtime_error(message), result(result) {}
    const HcclResult result;
};

struct Membership {
    std::unique_ptr<Control> control;
    std::vector<std::shared_ptr<PeerMemory>> memory;  // by rank; null for this rank
};

// Joins the `ranks` ranks that meet at socket `name` as `rank`, with the memory of visible device `device`.
// Throws RendezvousError, after `timeout` at the latest.
Membership join(const std::string& name, uint32_t ranks, uint32_t rank, int device, std::chrono::seconds timeout);

}  // namespace npu_sim::hccl
