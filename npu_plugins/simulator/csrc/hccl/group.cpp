#include "hccl/group.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace npu_sim::hccl {
namespace {

// The transfers of one communicator and stream in a group. Filled by the calling thread, read by the stream
// once `is_closed`.
struct Batch {
    Batch(std::shared_ptr<Comm> comm, aclrtStream stream) : comm(std::move(comm)), stream(stream) {}

    bool can_cross() const {
        const auto differs = [this](const Transfer& it) { return it.is_send != transfers.front().is_send; };
        return comm->ranks() > 2 || std::any_of(transfers.begin(), transfers.end(), differs);
    }

    const std::shared_ptr<Comm> comm;
    const aclrtStream stream;
    std::vector<Transfer> transfers;
    std::atomic<bool> is_closed{false};
};

struct Group {
    int depth = 0;
    std::vector<std::shared_ptr<Batch>> batches;
};

Group& group() {
    thread_local Group own;
    return own;
}

std::shared_ptr<Batch> batch_for(const std::shared_ptr<Comm>& comm, aclrtStream stream) {
    for (const auto& batch : group().batches)
        if (batch->comm == comm && batch->stream == stream) return batch;
    return group().batches.emplace_back(std::make_shared<Batch>(comm, stream));
}

// The call's turn in its stream.
void run_member(const Batch& batch, size_t index, const Label& label) {
    const auto nobody = [](uint32_t) { return false; };
    batch.comm->wait_for_bell(label, [&] { return batch.is_closed.load(); }, nobody);
    if (!batch.can_cross())
        run_transfers(*batch.comm, {batch.transfers[index]}, label);
    else if (index + 1 == batch.transfers.size())
        run_transfers(*batch.comm, batch.transfers, label);
}

}  // namespace

bool is_grouping() { return group().depth > 0; }

HcclResult issue_in_group(const std::shared_ptr<Comm>& comm, aclrtStream stream, Label label,
                          const Transfer& transfer) {
    const auto batch = batch_for(comm, stream);
    const size_t index = batch->transfers.size();
    batch->transfers.push_back(transfer);
    return comm->issue(stream, std::move(label), [batch, index](const Label& of) { run_member(*batch, index, of); });
}

}  // namespace npu_sim::hccl

using namespace npu_sim::hccl;

extern "C" NPU_SIM_EXPORT HcclResult HcclGroupStart() {
    ++group().depth;
    return HCCL_SUCCESS;
}

extern "C" NPU_SIM_EXPORT HcclResult HcclGroupEnd() {
    if (group().depth == 0) return refuse(HCCL_E_PARA, "HcclGroupEnd: no HcclGroupStart of this thread is open.");
    if (--group().depth > 0) return HCCL_SUCCESS;
    for (const auto& batch : std::exchange(group().batches, {})) {
        batch->is_closed.store(true);
        batch->comm->ring_bell(batch->comm->rank());
    }
    return HCCL_SUCCESS;
}
