#include "hccl/control.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace npu_sim::hccl {
namespace {

// Where each part begins, in bytes; all parts are whole cache lines.
struct Layout {
    explicit Layout(uint64_t n) {
        states = sizeof(Gate);
        descriptors = states + n * sizeof(RankState);
        pieces = descriptors + n * kParities * sizeof(Descriptor);
        mailboxes = (pieces + n * kParities * n * sizeof(Piece) + 63) / 64 * 64;
        payloads = (mailboxes + n * n * sizeof(Mailbox) + 4095) / 4096 * 4096;
        end = payloads + n * kParities * kInlineBytes;
    }
    size_t states, descriptors, pieces, mailboxes, payloads, end;
};

}  // namespace

const char* kind_name(Kind kind) {
    switch (kind) {
        case Kind::kAllReduce: return "HcclAllReduce";
        case Kind::kBroadcast: return "HcclBroadcast";
        case Kind::kAllGather: return "HcclAllGather";
        case Kind::kAllGatherV: return "HcclAllGatherV";
        case Kind::kReduceScatter: return "HcclReduceScatter";
        case Kind::kReduceScatterV: return "HcclReduceScatterV";
        case Kind::kReduce: return "HcclReduce";
        case Kind::kScatter: return "HcclScatter";
        case Kind::kAlltoAll: return "HcclAlltoAll";
        case Kind::kAlltoAllV: return "HcclAlltoAllV";
        case Kind::kAlltoAllVC: return "HcclAlltoAllVC";
        case Kind::kBarrier: return "HcclBarrier";
        case Kind::kSend: return "HcclSend";
        case Kind::kRecv: return "HcclRecv";
        case Kind::kBatchSendRecv: return "HcclBatchSendRecv";
    }
    return "unknown operation";
}

size_t Control::bytes_for(uint32_t ranks) { return Layout(ranks).end; }

Control::Control(int fd, uint32_t ranks) : ranks_(ranks) {
    void* base = mmap(nullptr, bytes_for(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        throw std::runtime_error(std::string("cannot map the control block of a communicator: ") + strerror(errno));
    base_ = static_cast<char*>(base);
}

Control::~Control() {
    if (base_ != nullptr) munmap(base_, bytes_for(ranks_));
}

Gate& Control::gate() const { return *reinterpret_cast<Gate*>(base_); }

RankState& Control::rank(uint32_t rank) const {
    return reinterpret_cast<RankState*>(base_ + Layout(ranks_).states)[rank];
}

Descriptor& Control::descriptor(uint32_t rank, uint32_t parity) const {
    return reinterpret_cast<Descriptor*>(base_ + Layout(ranks_).descriptors)[rank * kParities + parity];
}

Piece* Control::pieces(uint32_t rank, uint32_t parity) const {
    auto* first = reinterpret_cast<Piece*>(base_ + Layout(ranks_).pieces);
    return first + static_cast<size_t>(rank * kParities + parity) * ranks_;
}

char* Control::payload(uint32_t rank, uint32_t parity) const {
    return base_ + Layout(ranks_).payloads + static_cast<size_t>(rank * kParities + parity) * kInlineBytes;
}

Mailbox& Control::mailbox(uint32_t from, uint32_t to) const {
    auto* first = reinterpret_cast<Mailbox*>(base_ + Layout(ranks_).mailboxes);
    return first[static_cast<size_t>(from) * ranks_ + to];
}

}  // namespace npu_sim::hccl
