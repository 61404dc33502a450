#include "hccl/group.h"

#include <utility>

namespace npu_sim::hccl {
namespace {

struct Batch {
    std::shared_ptr<Comm> comm;
    aclrtStream stream;
    std::vector<Transfer> transfers;
};

struct Group {
    int depth = 0;
    std::vector<Batch> batches;
    std::vector<std::function<HcclResult()>> collectives;
};

Group& group() {
    thread_local Group own;
    return own;
}

HcclResult issue_all(Group& ended) {
    HcclResult first = HCCL_SUCCESS;
    const auto keep = [&first](HcclResult result) {
        if (first == HCCL_SUCCESS) first = result;
    };
    for (Batch& batch : ended.batches) keep(issue_batch(batch.comm, batch.stream, std::move(batch.transfers)));
    for (const auto& issue : ended.collectives) keep(issue());
    return first;
}

}  // namespace

bool is_grouping() { return group().depth > 0; }

void defer_transfer(std::shared_ptr<Comm> comm, aclrtStream stream, const Transfer& transfer) {
    for (Batch& batch : group().batches) {
        if (batch.comm != comm || batch.stream != stream) continue;
        batch.transfers.push_back(transfer);
        return;
    }
    group().batches.push_back({std::move(comm), stream, {transfer}});
}

void defer_collective(std::function<HcclResult()> issue) { group().collectives.push_back(std::move(issue)); }

HcclResult issue_batch(const std::shared_ptr<Comm>& comm, aclrtStream stream, std::vector<Transfer> transfers) {
    Label label{Kind::kBatchSendRecv, 0, std::to_string(transfers.size()) + " transfers"};
    return comm->issue(stream, std::move(label),
                       [comm = comm.get(), transfers = std::move(transfers)](const Label& of) {
                           run_transfers(*comm, transfers, of);
                       });
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
    Group ended = std::exchange(group(), Group{});
    return issue_all(ended);
}
