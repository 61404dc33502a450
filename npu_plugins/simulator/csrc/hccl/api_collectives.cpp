// The collectives of HCCL's C interface: check, describe, issue.
#include <algorithm>

#include "hccl/buffers.h"
#include "hccl/collectives.h"
#include "hccl/group.h"

using namespace npu_sim::hccl;

namespace {

// Lists of counts and displacements come as untyped pointers to uint64_t.
uint64_t extent(const std::vector<Piece>& pieces) {
    uint64_t end = 0;
    for (const Piece& piece : pieces)
        if (piece.bytes > 0) end = std::max(end, piece.offset + piece.bytes);
    return end;
}

// A call on its way: the communicator, what is asked and the checks so far.
class Call {
  public:
    Call(Kind kind, HcclDataType type, HcclComm handle)
        : function_(kind_name(kind)), comm_(find_comm(handle, function_)) {
        asked.kind = kind;
        asked.type = type;
        if (comm_) checks_.emplace(function_, *comm_).type(type);
    }

    // False when the handle was wrong or a check has failed: finish() then says so.
    bool good() const { return comm_ && checks_->passed(); }
    Checks& checks() { return *checks_; }
    const Comm& comm() const { return *comm_; }
    uint64_t bytes_of(uint64_t count) { return checks_->bytes_of(asked.type, count); }
    bool is_root() const { return comm_->rank() == asked.root; }

    void send(const void* buffer, uint64_t bytes) {
        asked.send = static_cast<const char*>(buffer);
        asked.send_bytes = bytes;
        checks_->buffer("sendBuf", buffer, bytes, &asked.send_offset);
    }
    void recv(const void* buffer, uint64_t bytes) {
        asked.recv = static_cast<char*>(const_cast<void*>(buffer));
        asked.recv_bytes = bytes;
        checks_->buffer("recvBuf", buffer, bytes, &asked.recv_offset);
    }
    void reduce_with(HcclReduceOp op) {
        asked.op = op;
        checks_->reduction(asked.type, op);
    }

    HcclResult finish(aclrtStream stream) {
        if (!comm_) return HCCL_E_PTR;
        if (!checks_->passed()) return checks_->report();
        Label label{asked.kind, 0, detail()};
        auto body = [comm = comm_.get(), asked = std::move(asked)](const Label& of) { run_collective(*comm, asked, of); };
        if (is_grouping()) return keep_collective(comm_, stream, std::move(label), std::move(body));
        return comm_->issue(stream, std::move(label), std::move(body));
    }

    Collective asked;

  private:
    std::string detail() const {
        if (asked.kind == Kind::kBarrier) return "";
        std::string text = asked.count > 0 ? "count " + std::to_string(asked.count) + ", " : "";
        text += type_name(asked.type);
        if (asked.op != HCCL_REDUCE_RESERVED) text += std::string(", ") + reduce_name(asked.op);
        return text;
    }

    const char* function_;
    std::shared_ptr<Comm> comm_;
    std::optional<Checks> checks_;
};

// Lists of counts and displacements come as untyped pointers to uint64_t.
std::vector<Piece> to_pieces(Call& call, const void* counts, const void* displacements) {
    const auto* count = static_cast<const uint64_t*>(counts);
    const auto* displacement = static_cast<const uint64_t*>(displacements);
    std::vector<Piece> pieces;
    for (uint32_t rank = 0; rank < call.comm().ranks(); ++rank)
        pieces.push_back({call.bytes_of(displacement[rank]), call.bytes_of(count[rank])});
    return pieces;
}

// A buffer may serve as both input and output, but not shifted against itself.
void check_in_place(Call& call) {
    const Collective& asked = call.asked;
    const bool is_apart = asked.send + asked.send_bytes <= asked.recv || asked.recv + asked.recv_bytes <= asked.send;
    call.checks().that(asked.send == asked.recv || is_apart || asked.send_bytes == 0 || asked.recv_bytes == 0,
                       HCCL_E_PARA, "sendBuf and recvBuf overlap without being equal.");
}

void check_list(Call& call, const char* name, const void* list) {
    call.checks().that(list != nullptr, HCCL_E_PTR, std::string(name) + " is null.");
}

// The end of all-to-all calls whose pieces are known.
HcclResult exchange(Call& call, const void* send, std::vector<Piece> sent, const void* recv,
                    std::vector<Piece> received, aclrtStream stream) {
    call.send(send, extent(sent));
    call.recv(recv, extent(received));
    call.asked.sent = std::move(sent);
    call.asked.received = std::move(received);
    return call.finish(stream);
}

}  // namespace

extern "C" NPU_SIM_EXPORT HcclResult HcclAllReduce(void* sendBuf, void* recvBuf, uint64_t count, HcclDataType dataType,
                                                   HcclReduceOp op, HcclComm comm, aclrtStream stream) {
    Call call(Kind::kAllReduce, dataType, comm);
    if (!call.good()) return call.finish(stream);
    call.asked.count = count;
    call.reduce_with(op);
    call.send(sendBuf, call.bytes_of(count));
    call.recv(recvBuf, call.bytes_of(count));
    check_in_place(call);
    return call.finish(stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclReduce(void* sendBuf, void* recvBuf, uint64_t count, HcclDataType dataType,
                                                HcclReduceOp op, uint32_t root, HcclComm comm, aclrtStream stream) {
    Call call(Kind::kReduce, dataType, comm);
    if (!call.good()) return call.finish(stream);
    call.asked.count = count;
    call.asked.root = root;
    call.checks().peer("root", root);
    call.reduce_with(op);
    call.send(sendBuf, call.bytes_of(count));
    if (call.is_root()) call.recv(recvBuf, call.bytes_of(count));
    check_in_place(call);
    return call.finish(stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclBroadcast(void* buf, uint64_t count, HcclDataType dataType, uint32_t root,
                                                   HcclComm comm, aclrtStream stream) {
    Call call(Kind::kBroadcast, dataType, comm);
    if (!call.good()) return call.finish(stream);
    call.asked.count = count;
    call.asked.root = root;
    call.checks().peer("root", root);
    if (call.is_root()) call.send(buf, call.bytes_of(count));
    call.recv(buf, call.bytes_of(count));
    return call.finish(stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclScatter(void* sendBuf, void* recvBuf, uint64_t recvCount,
                                                 HcclDataType dataType, uint32_t root, HcclComm comm,
                                                 aclrtStream stream) {
    Call call(Kind::kScatter, dataType, comm);
    if (!call.good()) return call.finish(stream);
    call.asked.count = recvCount;
    call.asked.root = root;
    call.checks().peer("root", root);
    if (call.is_root()) call.send(sendBuf, call.bytes_of(recvCount) * call.comm().ranks());
    call.recv(recvBuf, call.bytes_of(recvCount));
    return call.finish(stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclAllGather(void* sendBuf, void* recvBuf, uint64_t sendCount,
                                                   HcclDataType dataType, HcclComm comm, aclrtStream stream) {
    Call call(Kind::kAllGather, dataType, comm);
    if (!call.good()) return call.finish(stream);
    call.asked.count = sendCount;
    call.send(sendBuf, call.bytes_of(sendCount));
    call.recv(recvBuf, call.bytes_of(sendCount) * call.comm().ranks());
    return call.finish(stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclAllGatherV(void* sendBuf, uint64_t sendCount, void* recvBuf,
                                                    const void* recvCounts, const void* recvDispls,
                                                    HcclDataType dataType, HcclComm comm, aclrtStream stream) {
    Call call(Kind::kAllGatherV, dataType, comm);
    if (!call.good()) return call.finish(stream);
    check_list(call, "recvCounts", recvCounts);
    check_list(call, "recvDispls", recvDispls);
    if (!call.good()) return call.finish(stream);
    std::vector<Piece> sent(call.comm().ranks(), Piece{0, call.bytes_of(sendCount)});
    return exchange(call, sendBuf, std::move(sent), recvBuf, to_pieces(call, recvCounts, recvDispls), stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclReduceScatter(void* sendBuf, void* recvBuf, uint64_t recvCount,
                                                       HcclDataType dataType, HcclReduceOp op, HcclComm comm,
                                                       aclrtStream stream) {
    Call call(Kind::kReduceScatter, dataType, comm);
    if (!call.good()) return call.finish(stream);
    call.asked.count = recvCount;
    call.reduce_with(op);
    call.send(sendBuf, call.bytes_of(recvCount) * call.comm().ranks());
    call.recv(recvBuf, call.bytes_of(recvCount));
    return call.finish(stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclReduceScatterV(void* sendBuf, const void* sendCounts, const void* sendDispls,
                                                        void* recvBuf, uint64_t recvCount, HcclDataType dataType,
                                                        HcclReduceOp op, HcclComm comm, aclrtStream stream) {
    Call call(Kind::kReduceScatterV, dataType, comm);
    if (!call.good()) return call.finish(stream);
    check_list(call, "sendCounts", sendCounts);
    check_list(call, "sendDispls", sendDispls);
    call.reduce_with(op);
    if (!call.good()) return call.finish(stream);
    call.asked.sent = to_pieces(call, sendCounts, sendDispls);
    call.send(sendBuf, extent(call.asked.sent));
    call.recv(recvBuf, call.bytes_of(recvCount));
    return call.finish(stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclAlltoAll(const void* sendBuf, uint64_t sendCount, HcclDataType sendType,
                                                  const void* recvBuf, uint64_t recvCount, HcclDataType recvType,
                                                  HcclComm comm, aclrtStream stream) {
    Call call(Kind::kAlltoAll, sendType, comm);
    if (!call.good()) return call.finish(stream);
    call.checks().that(sendType == recvType && sendCount == recvCount, HCCL_E_PARA,
                       "sends " + std::to_string(sendCount) + " " + type_name(sendType) + " to each rank but receives " +
                           std::to_string(recvCount) + " " + type_name(recvType) + ".");
    call.asked.count = sendCount;
    call.send(sendBuf, call.bytes_of(sendCount) * call.comm().ranks());
    call.recv(recvBuf, call.bytes_of(sendCount) * call.comm().ranks());
    return call.finish(stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclAlltoAllV(const void* sendBuf, const void* sendCounts, const void* sdispls,
                                                   HcclDataType sendType, const void* recvBuf, const void* recvCounts,
                                                   const void* rdispls, HcclDataType recvType, HcclComm comm,
                                                   aclrtStream stream) {
    Call call(Kind::kAlltoAllV, sendType, comm);
    if (!call.good()) return call.finish(stream);
    call.checks().that(sendType == recvType, HCCL_E_PARA, "sendType and recvType differ.");
    check_list(call, "sendCounts", sendCounts);
    check_list(call, "sdispls", sdispls);
    check_list(call, "recvCounts", recvCounts);
    check_list(call, "rdispls", rdispls);
    if (!call.good()) return call.finish(stream);
    return exchange(call, sendBuf, to_pieces(call, sendCounts, sdispls), recvBuf,
                    to_pieces(call, recvCounts, rdispls), stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclAlltoAllVC(const void* sendBuf, const void* sendCountMatrix,
                                                    HcclDataType sendType, const void* recvBuf, HcclDataType recvType,
                                                    HcclComm comm, aclrtStream stream) {
    Call call(Kind::kAlltoAllVC, sendType, comm);
    if (!call.good()) return call.finish(stream);
    call.checks().that(sendType == recvType, HCCL_E_PARA, "sendType and recvType differ.");
    check_list(call, "sendCountMatrix", sendCountMatrix);
    if (!call.good()) return call.finish(stream);
    const uint32_t ranks = call.comm().ranks();
    const uint32_t self = call.comm().rank();
    const auto* matrix = static_cast<const uint64_t*>(sendCountMatrix);
    std::vector<Piece> sent;
    std::vector<Piece> received;
    for (uint32_t peer = 0; peer < ranks; ++peer) {
        const auto after = [](const std::vector<Piece>& all) {
            return all.empty() ? 0 : all.back().offset + all.back().bytes;
        };
        sent.push_back({after(sent), call.bytes_of(matrix[self * ranks + peer])});
        received.push_back({after(received), call.bytes_of(matrix[peer * ranks + self])});
    }
    return exchange(call, sendBuf, std::move(sent), recvBuf, std::move(received), stream);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
    return Call(Kind::kBarrier, HCCL_DATA_TYPE_INT8, comm).finish(stream);
}
