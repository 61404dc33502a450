#include "hccl/collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "hccl/reduce.h"

namespace npu_sim::hccl {
namespace {

// Ranks share an all-reduce in pieces of whole cache lines.
constexpr uint64_t kGrain = 64;

bool overlap(const char* a, uint64_t a_bytes, const char* b, uint64_t b_bytes) {
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

std::string describe(uint32_t rank, const Descriptor& it) {
    std::string text = "rank " + std::to_string(rank) + ": " + kind_name(it.kind) + " #" + std::to_string(it.sequence);
    text += " (count " + std::to_string(it.count) + ", " + type_name(it.type);
    if (it.op != HCCL_REDUCE_RESERVED) text += std::string(", ") + reduce_name(it.op);
    return text + ", root " + std::to_string(it.root) + ")";
}

// One collective under way.
class Run {
  public:
    Run(Comm& comm, const Collective& asked, const Label& label)
        : comm_(comm), asked_(asked), label_(label), parity_(comm.next_parity()), crossed_(comm.ranks()) {}

    void execute();

  private:
    void announce();
    void check_agreement() const;
    void move_data();
    void copy_from_all();
    void copy_from(uint32_t peer, uint64_t source_offset, uint64_t bytes, uint64_t target_offset);
    void reduce_own_chunk();
    void reduce_everything();
    void reduce_scattered();
    void check_piece(uint32_t peer, uint64_t bytes, uint64_t expected) const;
    void cross(uint32_t peer, uint64_t bytes);
    char* landing(uint64_t offset, uint64_t bytes, const char* harmless_source);
    const char* source(uint32_t rank) const;
    char* target(uint32_t rank) const;
    const Descriptor& said(uint32_t rank) const { return comm_.control().descriptor(rank, parity_); }

    Comm& comm_;
    const Collective& asked_;
    const Label& label_;
    const uint32_t parity_;
    bool is_inline_ = true;
    // Results that may only be written once nobody reads this rank's send buffer any more.
    struct Late {
        std::unique_ptr<char[]> bytes;
        char* to;
        uint64_t count;
    };
    std::vector<Late> late_;
    std::vector<uint64_t> crossed_;  // by rank: bytes that this one took from its memory or put there
};

void Run::execute() {
    announce();
    comm_.barrier(label_);
    check_agreement();
    for (uint32_t rank = 0; rank < comm_.ranks(); ++rank)
        if (said(rank).has_send && !said(rank).is_inline) is_inline_ = false;
    const auto began = Clock::now();
    move_data();
    for (uint32_t rank = 0; rank < comm_.ranks(); ++rank)
        comm_.sleep_until(began + comm_.crossing_time(rank, crossed_[rank]), label_, [](uint32_t) { return false; });
    // With everything beside the descriptors, which alternate, nobody needs to know that all have read.
    if (!is_inline_) comm_.barrier(label_);
    for (const Late& item : late_) std::memcpy(item.to, item.bytes.get(), item.count);
}

void Run::announce() {
    const Control& control = comm_.control();
    Descriptor& mine = control.descriptor(comm_.rank(), parity_);
    mine.kind = asked_.kind;
    mine.type = asked_.type;
    mine.op = asked_.op;
    mine.root = asked_.root;
    mine.count = asked_.count;
    mine.sequence = label_.sequence;
    mine.send_offset = asked_.send_offset;
    mine.recv_offset = asked_.recv_offset;
    mine.has_send = asked_.send_bytes > 0;
    mine.has_recv = asked_.recv_bytes > 0;
    mine.is_inline = asked_.send_bytes <= kInlineBytes;
    if (mine.has_send && mine.is_inline)
        std::memcpy(control.payload(comm_.rank(), parity_), asked_.send, asked_.send_bytes);
    if (!asked_.sent.empty()) std::copy(asked_.sent.begin(), asked_.sent.end(), control.pieces(comm_.rank(), parity_));
}

void Run::check_agreement() const {
    const Descriptor& mine = said(comm_.rank());
    for (uint32_t rank = 0; rank < comm_.ranks(); ++rank) {
        const Descriptor& other = said(rank);
        if (other.kind == mine.kind && other.type == mine.type && other.op == mine.op && other.root == mine.root &&
            other.count == mine.count && other.sequence == mine.sequence)
            continue;
        throw CommFailure(HCCL_E_PARA, "EI0005: the ranks of communicator '" + comm_.name() +
                                           "' do not agree on their operation: " + describe(comm_.rank(), mine) +
                                           "; " + describe(rank, other) + ".");
    }
}

const char* Run::source(uint32_t rank) const {
    if (said(rank).is_inline) return comm_.control().payload(rank, parity_);
    return rank == comm_.rank() ? asked_.send : comm_.memory(rank).at(said(rank).send_offset);
}

char* Run::target(uint32_t rank) const {
    return rank == comm_.rank() ? asked_.recv : comm_.memory(rank).at(said(rank).recv_offset);
}

void Run::move_data() {
    switch (asked_.kind) {
        case Kind::kBarrier: return;
        case Kind::kAllReduce: return is_inline_ ? reduce_everything() : reduce_own_chunk();
        case Kind::kReduce:
            if (!is_inline_) return reduce_own_chunk();
            if (comm_.rank() == asked_.root) reduce_everything();
            return;
        case Kind::kReduceScatter:
        case Kind::kReduceScatterV: return reduce_scattered();
        default: return copy_from_all();
    }
}

// Where results for [offset, offset + bytes) of the receive buffer go now. Others may still read this rank's
// send buffer: what would overwrite it waits, unless it falls exactly on `harmless_source`.
char* Run::landing(uint64_t offset, uint64_t bytes, const char* harmless_source) {
    char* to = asked_.recv + offset;
    if (is_inline_ || to == harmless_source || !overlap(to, bytes, asked_.send, asked_.send_bytes)) return to;
    late_.push_back({std::make_unique_for_overwrite<char[]>(bytes), to, bytes});
    return late_.back().bytes.get();
}

void Run::copy_from(uint32_t peer, uint64_t source_offset, uint64_t bytes, uint64_t target_offset) {
    if (bytes == 0) return;
    const char* from = source(peer) + source_offset;
    const bool is_own = peer == comm_.rank() && !said(peer).is_inline;
    char* to = landing(target_offset, bytes, is_own ? from : nullptr);
    cross(peer, bytes);
    if (to != from) std::memcpy(to, from, bytes);
}

void Run::cross(uint32_t peer, uint64_t bytes) {
    if (peer != comm_.rank()) crossed_[peer] += bytes;
}

void Run::check_piece(uint32_t peer, uint64_t bytes, uint64_t expected) const {
    if (bytes == expected) return;
    throw CommFailure(HCCL_E_PARA, "EI0005: " + label_.text() + " on communicator '" + comm_.name() + "': rank " +
                                       std::to_string(peer) + " sends " + std::to_string(bytes) +
                                       " bytes to rank " + std::to_string(comm_.rank()) + ", which expects " +
                                       std::to_string(expected) + ".");
}

void Run::copy_from_all() {
    const uint32_t self = comm_.rank();
    const uint64_t part = asked_.recv_bytes / comm_.ranks();
    for (uint32_t step = 0; step < comm_.ranks(); ++step) {
        const uint32_t peer = (self + step) % comm_.ranks();  // not all at the same memory at once
        switch (asked_.kind) {
            case Kind::kBroadcast:
                if (peer == asked_.root && self != peer) copy_from(peer, 0, asked_.recv_bytes, 0);
                break;
            case Kind::kScatter:
                if (peer == asked_.root) copy_from(peer, self * asked_.recv_bytes, asked_.recv_bytes, 0);
                break;
            case Kind::kAllGather:
                copy_from(peer, 0, part, peer * part);
                break;
            case Kind::kAlltoAll:
                copy_from(peer, self * part, part, peer * part);
                break;
            default: {
                const Piece sent = comm_.control().pieces(peer, parity_)[self];
                check_piece(peer, sent.bytes, asked_.received[peer].bytes);
                copy_from(peer, sent.offset, sent.bytes, asked_.received[peer].offset);
            }
        }
    }
}

// Every rank folds its share of the elements and writes it wherever it is wanted. In place is safe: only this
// rank reads and writes its share of anybody's buffers.
void Run::reduce_own_chunk() {
    const uint64_t bytes = element_bytes(asked_.type);
    const uint64_t grain = kGrain / bytes;
    const uint64_t grains = (asked_.count + grain - 1) / grain;
    const uint64_t first = std::min(asked_.count, grains * comm_.rank() / comm_.ranks() * grain);
    const uint64_t last = std::min(asked_.count, grains * (comm_.rank() + 1) / comm_.ranks() * grain);
    std::vector<const void*> sources;
    std::vector<void*> targets;
    for (uint32_t rank = 0; rank < comm_.ranks(); ++rank) {
        sources.push_back(source(rank) + first * bytes);
        cross(rank, (last - first) * bytes);
        if (asked_.kind != Kind::kAllReduce && rank != asked_.root) continue;
        targets.push_back(target(rank) + first * bytes);
        cross(rank, (last - first) * bytes);
    }
    reduce(asked_.type, asked_.op, sources.data(), comm_.ranks(), targets.data(),
           static_cast<uint32_t>(targets.size()), last - first);
}

void Run::reduce_everything() {
    std::vector<const void*> sources;
    for (uint32_t rank = 0; rank < comm_.ranks(); ++rank) {
        sources.push_back(source(rank));
        cross(rank, asked_.send_bytes);
    }
    void* to = asked_.recv;
    reduce(asked_.type, asked_.op, sources.data(), comm_.ranks(), &to, 1, asked_.count);
}

void Run::reduce_scattered() {
    const uint32_t self = comm_.rank();
    std::vector<const void*> sources;
    for (uint32_t rank = 0; rank < comm_.ranks(); ++rank) {
        uint64_t offset = self * asked_.recv_bytes;
        if (asked_.kind == Kind::kReduceScatterV) {
            const Piece sent = comm_.control().pieces(rank, parity_)[self];
            check_piece(rank, sent.bytes, asked_.recv_bytes);
            offset = sent.offset;
        }
        sources.push_back(source(rank) + offset);
        cross(rank, asked_.recv_bytes);
    }
    if (asked_.recv_bytes == 0) return;
    void* to = landing(0, asked_.recv_bytes, static_cast<const char*>(sources[self]));
    reduce(asked_.type, asked_.op, sources.data(), comm_.ranks(), &to, 1,
           asked_.recv_bytes / element_bytes(asked_.type));
}

}  // namespace

void run_collective(Comm& comm, const Collective& asked, const Label& label) { Run(comm, asked, label).execute(); }

}  // namespace npu_sim::hccl
