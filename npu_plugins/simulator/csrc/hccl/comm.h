// A communicator: one rank's view of its group.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "hccl/config.h"
#include "hccl/control.h"
#include "hccl/peer_memory.h"
#include "hccl/slow_links.h"
#include "hccl/turnstile.h"
#include "hccl/types.h"

namespace npu_sim::hccl {

// What is needed to set up a communicator.
struct CommPlan {
    std::string meeting;  // socket name of the root
    std::string name;     // as HcclGetCommName gives it
    uint32_t ranks = 0;
    uint32_t rank = 0;
    int device = -1;  // visible number
    Timeouts timeouts;
    SlowLinks slow_links;
};

// Thrown inside a stream task when an operation cannot end; the task turns it into the stream's error.
class CommFailure : public std::runtime_error {
  public:
    CommFailure(HcclResult result, const std::string& text) : std::runtime_error(text), result(result) {}
    const HcclResult result;
};

// The operation a message talks about, e.g. "HcclAllReduce #12 (count 5, float32, sum)".
struct Label {
    Kind kind = Kind::kBarrier;
    uint64_t sequence = 0;
    std::string detail;
    std::string text() const;
};

class Comm : public std::enable_shared_from_this<Comm> {
  public:
    // Meets the other ranks. Throws RendezvousError.
    static std::shared_ptr<Comm> make(const CommPlan& plan);

    const std::string& name() const { return plan_.name; }
    const std::string& meeting() const { return plan_.meeting; }
    uint32_t rank() const { return plan_.rank; }
    uint32_t ranks() const { return plan_.ranks; }
    int device() const { return plan_.device; }
    Control& control() const { return *control_; }
    const PeerMemory& memory(uint32_t rank) const { return *memory_[rank]; }

    // Queues `body` on the stream; it runs after everything issued on this communicator before, on any stream.
    // `body` throws CommFailure where it must end in vain. The label's sequence is filled in here.
    HcclResult issue(aclrtStream stream, Label label, std::function<void(const Label&)> body);

    // For bodies. Waits until all ranks have come here as often as this one. Throws CommFailure.
    void barrier(const Label& label);
    // Waits until `progress()` returns true, calling it again whenever this rank's doorbell has rung;
    // `is_missing(rank)` says whom it still waits for. Throws CommFailure.
    void wait_for_bell(const Label& label, const std::function<bool()>& progress,
                       const std::function<bool(uint32_t)>& is_missing);
    // Rings another rank's doorbell.
    void ring_bell(uint32_t rank);
    // How long `bytes` between this rank and `peer` take at least.
    Clock::duration crossing_time(uint32_t peer, uint64_t bytes) const;
    // Sleeps until then; `is_missing(rank)` says whom it needs until then. Throws CommFailure as the waits do.
    void sleep_until(Clock::time_point then, const Label& label, const std::function<bool(uint32_t)>& is_missing);
    // Which of the two descriptor places the next collective uses; alternates.
    uint32_t next_parity() { return collectives_run_++ % kParities; }
    // Number of the sub-communicators made so far under this key, counting this one.
    uint64_t next_generation(const std::string& key);

    HcclResult error() const { return static_cast<HcclResult>(error_.load()); }
    // Ends pending operations (those near their end may finish) and tells the others that this rank has left.
    void close();

  private:
    class Patience;
    explicit Comm(const CommPlan& plan) : plan_(plan) {}
    aclError run(uint64_t turn, const Label& label, const std::function<void(const Label&)>& body);
    void give_up(const CommFailure& failure);
    void leave_as(Presence presence);

    const CommPlan plan_;
    std::unique_ptr<Control> control_;
    std::vector<std::shared_ptr<PeerMemory>> memory_;
    std::vector<bool> is_visible_;  // by rank: its process shows below this /proc, so its death can be seen
    std::chrono::nanoseconds spin_{0};
    int owner_ = 0;  // pid of the process that joined

    std::mutex issue_mutex_;  // a turn and its place in the stream are taken together
    Turnstile turnstile_;
    uint64_t issued_collectives_ = 0;
    uint64_t issued_messages_ = 0;
    std::vector<std::pair<std::string, uint64_t>> generations_;

    uint32_t phase_ = 0;              // only touched by the task whose turn it is
    uint32_t collectives_run_ = 0;    // likewise
    std::atomic<int> error_{HCCL_SUCCESS};
    std::atomic<bool> closing_{false};
};

// Communicators behind the handles that callers hold.
HcclComm publish_comm(std::shared_ptr<Comm> comm);
// Null, with the reason kept for aclGetRecentErrMsg(), when the handle is no living communicator.
std::shared_ptr<Comm> find_comm(HcclComm handle, const char* function);
// Takes the communicator out of the table; null as above.
std::shared_ptr<Comm> retract_comm(HcclComm handle, const char* function);

}  // namespace npu_sim::hccl
