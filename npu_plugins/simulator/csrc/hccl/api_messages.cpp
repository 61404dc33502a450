// HcclSend, HcclRecv, HcclBatchSendRecv.
#include "hccl/buffers.h"
#include "hccl/group.h"
#include "hccl/messages.h"

using namespace npu_sim::hccl;

namespace {

HcclResult transfer(Kind kind, void* buffer, uint64_t count, HcclDataType type, uint32_t peer, HcclComm handle,
                    aclrtStream stream) {
    const auto comm = find_comm(handle, kind_name(kind));
    if (!comm) return HCCL_E_PTR;
    Transfer asked{kind == Kind::kSend, peer, type, count, static_cast<char*>(buffer), 0};
    Checks checks(kind_name(kind), *comm);
    checks.type(type).peer(asked.is_send ? "destination" : "source", peer);
    const uint64_t bytes = checks.bytes_of(type, count);
    checks.buffer(asked.is_send ? "sendBuf" : "recvBuf", buffer, bytes, &asked.offset);
    if (!checks.passed()) return checks.report();
    if (is_grouping()) return keep_transfer(comm, stream, asked);
    Label label{kind, 0, (asked.is_send ? "to rank " : "from rank ") + std::to_string(peer) + ", count " +
                             std::to_string(count) + ", " + type_name(type)};
    return comm->issue(stream, std::move(label),
                       [comm = comm.get(), asked](const Label& of) { run_transfers(*comm, {asked}, of); });
}

}  // namespace

extern "C" NPU_SIM_EXPORT HcclResult HcclSend(void* sendBuf, uint64_t count, HcclDataType dataType, uint32_t destRank,
                                              HcclComm comm, aclrtStream stream) {
    return transfer(Kind::kSend, sendBuf, count, dataType, destRank, comm, stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclRecv(void* recvBuf, uint64_t count, HcclDataType dataType, uint32_t srcRank,
                                              HcclComm comm, aclrtStream stream) {
    return transfer(Kind::kRecv, recvBuf, count, dataType, srcRank, comm, stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclBatchSendRecv(HcclSendRecvItem* sendRecvInfo, uint32_t itemNum,
                                                       HcclComm handle, aclrtStream stream) {
    const auto comm = find_comm(handle, "HcclBatchSendRecv");
    if (!comm) return HCCL_E_PTR;
    Checks checks("HcclBatchSendRecv", *comm);
    checks.that(sendRecvInfo != nullptr, HCCL_E_PTR, "sendRecvInfo is null.");
    checks.that(itemNum > 0, HCCL_E_PARA, "itemNum is 0; there is nothing to send or receive.");
    std::vector<Transfer> transfers;
    for (uint32_t index = 0; checks.passed() && index < itemNum; ++index) {
        const HcclSendRecvItem& item = sendRecvInfo[index];
        const bool is_send = item.sendRecvType == HCCL_SEND;
        Transfer asked{is_send, item.remoteRank, item.dataType, item.count, static_cast<char*>(item.buf), 0};
        checks.that(is_send || item.sendRecvType == HCCL_RECV, HCCL_E_PARA,
                    "item " + std::to_string(index) + " is neither HCCL_SEND nor HCCL_RECV.");
        checks.type(item.dataType).peer("remote", item.remoteRank);
        const uint64_t bytes = checks.bytes_of(item.dataType, item.count);
        checks.buffer("buf", item.buf, bytes, &asked.offset);
        transfers.push_back(asked);
    }
    if (!checks.passed()) return checks.report();
    // Also in a group it runs here: HCCL takes no batch inside one.
    Label label{Kind::kBatchSendRecv, 0, std::to_string(itemNum) + " transfers"};
    return comm->issue(stream, std::move(label), [comm = comm.get(), transfers = std::move(transfers)](const Label& of) {
        run_transfers(*comm, transfers, of);
    });
}
