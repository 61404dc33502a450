// HcclGroupStart … HcclGroupEnd: the calls in between are kept, and issued together when the outermost group ends.
//
// As HCCL does it on an Atlas A2 (cann/hcomm, hccl_group.cc, read 2026-11): the sends and receives of a communicator
// run as one batch on the stream of the first; its collectives follow in order, and the end of the group waits for
// their streams. An event recorded inside a group therefore fires before the call it seems to follow, on a card too.
#pragma once

#include <functional>
#include <memory>

#include "hccl/comm.h"
#include "hccl/messages.h"

namespace npu_sim::hccl {

// True while the calling thread is between HcclGroupStart and HcclGroupEnd.
bool is_grouping();

// Keeps a checked send or receive for the end of the calling thread's group.
HcclResult keep_transfer(const std::shared_ptr<Comm>& comm, aclrtStream stream, const Transfer& transfer);

// Keeps a checked collective for the end of the calling thread's group.
HcclResult keep_collective(const std::shared_ptr<Comm>& comm, aclrtStream stream, Label label,
                           std::function<void(const Label&)> body);

}  // namespace npu_sim::hccl
