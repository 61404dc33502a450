// The control block of a communicator: one memfd that every member maps. It holds what ranks tell each other
// (who they are, how far they are, which buffers they offer); payloads larger than a few KiB stay in HBM.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hccl/hccl_types.h"

namespace npu_sim::hccl {

// Payload a rank may put beside its descriptor, in bytes: saves small collectives their second barrier.
constexpr size_t kInlineBytes = 8192;
// Descriptors alternate between two places, so that the next operation does not overwrite one still read.
constexpr uint32_t kParities = 2;

enum class Presence : uint32_t { kAbsent = 0, kPresent = 1, kFailed = 2, kLeft = 3 };

// Where all ranks meet: the last to arrive opens the gate, so that the others sleep and wake once each.
struct alignas(64) Gate {
    std::atomic<uint32_t> arrivals;  // over all barriers so far
    alignas(64) std::atomic<uint32_t> opened;  // barriers that all ranks have reached
    std::atomic<uint32_t> opened_waiters;
};

// One rank's own lines; others only read them, save the wake-up counts.
struct alignas(64) RankState {
    std::atomic<uint32_t> phase;  // barriers this rank has reached
    alignas(64) std::atomic<uint32_t> doorbell;  // rung by whoever posts or acknowledges a message
    std::atomic<uint32_t> doorbell_waiters;
    alignas(64) std::atomic<uint32_t> presence;  // Presence
    int32_t pid;
    uint64_t start_ticks;  // of the process, since boot: tells a reused pid
    int32_t physical_device;
    uint32_t failure_result;  // HcclResult, when presence is kFailed
    char failure[512];        // and why
};

enum class Kind : uint32_t {
    kAllReduce,
    kBroadcast,
    kAllGather,
    kAllGatherV,
    kReduceScatter,
    kReduceScatterV,
    kReduce,
    kScatter,
    kAlltoAll,
    kAlltoAllV,
    kAlltoAllVC,
    kBarrier,
    kSend,
    kRecv,
    kBatchSendRecv,
};

// The HCCL function that starts such an operation.
const char* kind_name(Kind kind);

// What every rank says about the collective it has reached.
struct alignas(64) Descriptor {
    Kind kind;
    HcclDataType type;
    HcclReduceOp op;
    uint32_t root;
    uint64_t count;     // elements, in the sense of the HCCL function; 0 where it differs by rank
    uint64_t sequence;  // collectives issued on the communicator before this one
    uint64_t send_offset;  // bytes into the rank's HBM
    uint64_t recv_offset;
    uint32_t has_send;
    uint32_t has_recv;
    uint32_t is_inline;  // the send buffer is copied beside the descriptor
};

// Part of a rank's send buffer meant for one peer (the V operations).
struct Piece {
    uint64_t offset;  // bytes from the start of the send buffer
    uint64_t bytes;
};

// Messages from one rank to another, one at a time: a send waits until the receive has taken it.
struct alignas(64) Mailbox {
    std::atomic<uint32_t> posted;  // messages offered so far
    std::atomic<uint32_t> taken;   // messages received so far
    HcclDataType type;
    uint64_t count;
    uint64_t offset;  // bytes into the sender's HBM
};

// Addresses inside a mapped control block.
class Control {
  public:
    // Bytes of the block of a communicator of `ranks`.
    static size_t bytes_for(uint32_t ranks);

    Control() = default;
    // Maps the block behind `fd`, which stays the caller's. Throws std::runtime_error when it cannot.
    Control(int fd, uint32_t ranks);
    ~Control();
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;

    Gate& gate() const;
    RankState& rank(uint32_t rank) const;
    Descriptor& descriptor(uint32_t rank, uint32_t parity) const;
    Piece* pieces(uint32_t rank, uint32_t parity) const;  // one for each peer
    char* payload(uint32_t rank, uint32_t parity) const;
    Mailbox& mailbox(uint32_t from, uint32_t to) const;
    uint32_t ranks() const { return ranks_; }

  private:
    char* base_ = nullptr;
    uint32_t ranks_ = 0;
};

}  // namespace npu_sim::hccl
