// HcclGroupStart … HcclGroupEnd: sends and receives in between run together.
//
// Each call takes its place in its stream at once, since torch_npu may record the event of a call before the
// group ends, and waits there for that end. Then the last call runs all transfers of its communicator and
// stream, in whatever order the peers are ready. Where nothing can cross, because all transfers of a pair go
// one way, each call runs its own, so that events between them tell the truth as well.
// Collectives are issued by their calls, in a group or not.
#pragma once

#include <memory>
#include <vector>

#include "hccl/comm.h"
#include "hccl/messages.h"

namespace npu_sim::hccl {

// True while the calling thread is between HcclGroupStart and HcclGroupEnd.
bool is_grouping();

// Issues a checked transfer as part of the group of the calling thread.
HcclResult issue_in_group(const std::shared_ptr<Comm>& comm, aclrtStream stream, Label label,
                          const Transfer& transfer);

}  // namespace npu_sim::hccl
