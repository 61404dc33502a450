// HcclGroupStart … HcclGroupEnd: operations in between are issued together at the end.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "hccl/comm.h"
#include "hccl/messages.h"

namespace npu_sim::hccl {

// True while the calling thread is between HcclGroupStart and HcclGroupEnd.
bool is_grouping();

// Keeps a checked operation for the end of the group. Transfers of one communicator and stream become one
// batch, which goes before the collectives of the group: all ranks then issue them in the same order, however
// each interleaved its calls.
void defer_transfer(std::shared_ptr<Comm> comm, aclrtStream stream, const Transfer& transfer);
void defer_collective(std::function<HcclResult()> issue);

// Issues transfers as one HcclBatchSendRecv.
HcclResult issue_batch(const std::shared_ptr<Comm>& comm, aclrtStream stream, std::vector<Transfer> transfers);

}  // namespace npu_sim::hccl
