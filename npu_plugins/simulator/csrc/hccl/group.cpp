#include "hccl/group.h"

#include <string>
#include <utility>
#include <vector>

#include "runtime/sim.h"

namespace npu_sim::hccl {
namespace {

struct KeptCollective {
    aclrtStream stream;
    Label label;
    std::function<void(const Label&)> body;
};

// What one communicator has to do when the group ends.
struct Kept {
    std::shared_ptr<Comm> comm;
    aclrtStream transfer_stream = nullptr;
    std::vector<Transfer> transfers;
    std::vector<KeptCollective> collectives;
};

struct Group {
    int depth = 0;
    std::vector<Kept> kept;
};

Group& group() {
    thread_local Group own;
    return own;
}

Kept& kept_of(const std::shared_ptr<Comm>& comm) {
    for (Kept& kept : group().kept)
        if (kept.comm == comm) return kept;
    return group().kept.emplace_back(Kept{comm, nullptr, {}, {}});
}

HcclResult issue_transfers(Kept& kept) {
    Label label{Kind::kBatchSendRecv, 0, std::to_string(kept.transfers.size()) + " transfers of a group"};
    auto body = [comm = kept.comm.get(), transfers = std::move(kept.transfers)](const Label& of) {
        run_transfers(*comm, transfers, of);
    };
    return kept.comm->issue(kept.transfer_stream, std::move(label), std::move(body));
}

HcclResult issue_all(Kept& kept) {
    if (!kept.transfers.empty())
        if (const HcclResult failed = issue_transfers(kept); failed != HCCL_SUCCESS) return failed;
    for (KeptCollective& each : kept.collectives)
        if (const HcclResult failed = kept.comm->issue(each.stream, std::move(each.label), std::move(each.body));
            failed != HCCL_SUCCESS)
            return failed;
    return HCCL_SUCCESS;
}

}  // namespace

bool is_grouping() { return group().depth > 0; }

HcclResult keep_transfer(const std::shared_ptr<Comm>& comm, aclrtStream stream, const Transfer& transfer) {
    Kept& kept = kept_of(comm);
    if (kept.transfers.empty()) kept.transfer_stream = stream;
    kept.transfers.push_back(transfer);
    return HCCL_SUCCESS;
}

HcclResult keep_collective(const std::shared_ptr<Comm>& comm, aclrtStream stream, Label label,
                           std::function<void(const Label&)> body) {
    kept_of(comm).collectives.push_back({stream, std::move(label), std::move(body)});
    return HCCL_SUCCESS;
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
    auto ended = std::exchange(group().kept, {});
    for (Kept& kept : ended)
        if (const HcclResult failed = issue_all(kept); failed != HCCL_SUCCESS) return failed;
    // A failure stays with its stream, where the caller's next synchronisation finds it.
    for (const Kept& kept : ended)
        for (const KeptCollective& each : kept.collectives) npu_sim::drain(each.stream);
    return HCCL_SUCCESS;
}
