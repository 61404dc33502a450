#include "hccl/comm.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <unordered_map>

#include "hccl/process.h"
#include "hccl/rendezvous.h"
#include "hccl/wait.h"

namespace npu_sim::hccl {
namespace {

constexpr std::chrono::milliseconds kLifeCheck{200};
constexpr std::chrono::milliseconds kCloseGrace{1000};  // for operations that are about to end by themselves
constexpr std::chrono::microseconds kSpin{20};

bool is_message(Kind kind) { return kind == Kind::kSend || kind == Kind::kRecv || kind == Kind::kBatchSendRecv; }

bool is_behind(uint32_t phase, uint32_t target) { return static_cast<int32_t>(phase - target) < 0; }

aclError stream_error(HcclResult result) {
    if (result == HCCL_E_TIMEOUT) return ACL_ERROR_RT_FFTS_PLUS_TIMEOUT;
    if (result == HCCL_E_SUSPENDING) return ACL_ERROR_RT_MODEL_ABORT_NORMAL;
    return ACL_ERROR_RT_FFTS_PLUS_EXCEPTION;
}

std::string list_ranks(uint32_t ranks, const std::function<bool(uint32_t)>& wanted) {
    std::string text;
    for (uint32_t rank = 0; rank < ranks; ++rank)
        if (wanted(rank)) text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return text;
}

}  // namespace

std::string Label::text() const {
    return std::string(kind_name(kind)) + " #" + std::to_string(sequence) + (detail.empty() ? "" : " (" + detail + ")");
}

// Decides between two sleeps whether waiting for the missing ranks still makes sense.
class Comm::Patience {
  public:
    Patience(Comm& comm, const Label& label, const std::function<bool(uint32_t)>& is_missing)
        : comm_(comm), label_(label), is_missing_(is_missing) {}

    // Throws CommFailure when it does not.
    void check() {
        const auto now = Clock::now();
        if (started_ == Clock::time_point{}) started_ = next_life_check_ = now;
        if (comm_.closing_.load())
            throw CommFailure(HCCL_E_SUSPENDING, where() + " was ended: its communicator is being destroyed.");
        for (uint32_t rank = 0; rank < comm_.ranks(); ++rank) look_at(rank, now >= next_life_check_);
        if (now >= next_life_check_) next_life_check_ = now + kLifeCheck;
        const auto limit = comm_.plan_.timeouts.exec;
        if (limit.count() > 0 && now - started_ >= limit)
            throw CommFailure(HCCL_E_TIMEOUT, "EI0002: notify wait timed out: " + where() + " waited " +
                                                  std::to_string(limit.count()) +
                                                  " s (HCCL_EXEC_TIMEOUT); " + what_is_missing() + ".");
    }

  private:
    std::string what_is_missing() const {
        const std::string absent = list_ranks(comm_.ranks(), is_missing_);
        return absent.empty() ? "its data were still on their way" : "did not arrive: rank " + absent;
    }

    std::string where() const {
        return label_.text() + " on communicator '" + comm_.name() + "', rank " + std::to_string(comm_.rank());
    }

    void look_at(uint32_t rank, bool is_life_checked) {
        if (rank == comm_.rank()) return;
        const RankState& state = comm_.control().rank(rank);
        const auto presence = static_cast<Presence>(state.presence.load());
        // A collective fails with any member; a message only with the rank at its other end. The text that the
        // failed rank left names the cause, wherever that was.
        if (presence == Presence::kFailed && (is_missing_(rank) || !is_message(label_.kind)))
            throw CommFailure(static_cast<HcclResult>(state.failure_result), state.failure);
        if (!is_missing_(rank)) return;
        const std::string waited = "EI0002: notify wait ended early: " + where() + " waits for rank " +
                                   std::to_string(rank) + " (pid " + std::to_string(state.pid) + "), ";
        if (presence == Presence::kLeft)
            throw CommFailure(HCCL_E_TIMEOUT, waited + "which has destroyed the communicator.");
        if (is_life_checked && comm_.is_visible_[rank] && !is_running(state.pid, state.start_ticks) && is_missing_(rank))
            throw CommFailure(HCCL_E_TIMEOUT, waited + "whose process has died.");
    }

    Comm& comm_;
    const Label& label_;
    const std::function<bool(uint32_t)>& is_missing_;
    Clock::time_point started_{};
    Clock::time_point next_life_check_{};
};

std::shared_ptr<Comm> Comm::make(const CommPlan& plan) {
    std::shared_ptr<Comm> comm(new Comm(plan));
    comm->owner_ = getpid();
    Membership joined = join(plan.meeting, plan.ranks, plan.rank, plan.device, plan.timeouts.connect);
    comm->control_ = std::move(joined.control);
    comm->memory_ = std::move(joined.memory);
    for (uint32_t rank = 0; rank < plan.ranks; ++rank) {
        // A rank in another container may have no place in this one's /proc; for that one only the timeout is left.
        const RankState& state = comm->control_->rank(rank);
        comm->is_visible_.push_back(is_running(state.pid, state.start_ticks));
    }
    // Spinning pays only while every rank has a core to itself.
    if (plan.ranks <= std::thread::hardware_concurrency()) comm->spin_ = kSpin;
    return comm;
}

HcclResult Comm::issue(aclrtStream stream, Label label, std::function<void(const Label&)> body) {
    std::lock_guard<std::mutex> lock(issue_mutex_);
    label.sequence = is_message(label.kind) ? issued_messages_++ : issued_collectives_++;
    // The turn is over when the task is gone: also when the stream drops it unrun.
    struct Turn {
        std::shared_ptr<Comm> comm;
        uint64_t number;
        ~Turn() { comm->turnstile_.leave(number); }
    };
    auto turn = std::make_shared<Turn>(shared_from_this(), turnstile_.take());
    const aclError failed = enqueue(stream, [turn, label = std::move(label), body = std::move(body)] {
        return turn->comm->run(turn->number, label, body);
    });
    return failed == ACL_SUCCESS ? HCCL_SUCCESS : HCCL_E_RUNTIME;
}

aclError Comm::run(uint64_t turn, const Label& label, const std::function<void(const Label&)>& body) {
    try {
        const auto refuse_when_over = [&] {
            if (!closing_.load() && error() == HCCL_SUCCESS) return;
            throw CommFailure(error() != HCCL_SUCCESS ? error() : HCCL_E_SUSPENDING,
                              label.text() + " on communicator '" + name() + "', rank " + std::to_string(rank()) +
                                  " cannot run: the communicator has failed before or is being destroyed.");
        };
        turnstile_.enter(turn, kSlice, refuse_when_over);
        refuse_when_over();
        body(label);
        return ACL_SUCCESS;
    } catch (const CommFailure& failure) {
        give_up(failure);
        return fail(stream_error(failure.result), failure.what());
    }
}

// Remembers the first failure and tells the other ranks, so that they do not wait for this one.
void Comm::give_up(const CommFailure& failure) {
    int none = HCCL_SUCCESS;
    if (!error_.compare_exchange_strong(none, failure.result)) return;
    RankState& own = control_->rank(rank());
    own.failure_result = failure.result;
    own.failure[std::string(failure.what()).copy(own.failure, sizeof(own.failure) - 1)] = '\0';
    leave_as(failure.result == HCCL_E_SUSPENDING ? Presence::kLeft : Presence::kFailed);
}

// Takes this rank out of the communicator, once, and wakes whoever may wait for it.
void Comm::leave_as(Presence presence) {
    RankState& own = control_->rank(rank());
    uint32_t present = static_cast<uint32_t>(Presence::kPresent);
    own.presence.compare_exchange_strong(present, static_cast<uint32_t>(presence));
    futex_wake_all(control_->gate().opened);
    for (uint32_t other = 0; other < ranks(); ++other) ring_bell(other);
}

void Comm::barrier(const Label& label) {
    const uint32_t target = ++phase_;
    control_->rank(rank()).phase.store(target);
    Gate& gate = control_->gate();
    if (gate.arrivals.fetch_add(1) + 1 == target * ranks()) return publish(gate.opened, gate.opened_waiters, target);
    const std::function<bool(uint32_t)> is_missing = [&](uint32_t other) {
        return is_behind(control_->rank(other).phase.load(), target);
    };
    // All are there but the gate is shut if the last rank died between its two steps: go on as well.
    const auto is_complete = [&] { return list_ranks(ranks(), is_missing).empty(); };
    Patience patience(*this, label, is_missing);
    wait_for(gate.opened, gate.opened_waiters, [&](uint32_t opened) { return !is_behind(opened, target); },
             [&] { return is_complete() || (patience.check(), false); }, spin_);
}

void Comm::wait_for_bell(const Label& label, const std::function<bool()>& progress,
                         const std::function<bool(uint32_t)>& is_missing) {
    RankState& own = control_->rank(rank());
    Patience patience(*this, label, is_missing);
    while (true) {
        const uint32_t heard = own.doorbell.load();
        if (progress()) return;
        const auto rung = [&](uint32_t now) { return now != heard; };
        wait_for(own.doorbell, own.doorbell_waiters, rung, [&] { return patience.check(), false; }, spin_);
    }
}

void Comm::ring_bell(uint32_t other) {
    RankState& state = control_->rank(other);
    ring(state.doorbell, state.doorbell_waiters);
}

Clock::duration Comm::crossing_time(uint32_t peer, uint64_t bytes) const {
    return plan_.slow_links.time_for(control_->rank(rank()).physical_device, control_->rank(peer).physical_device, bytes);
}

void Comm::sleep_until(Clock::time_point then, const Label& label,
                       const std::function<bool(uint32_t)>& is_missing) {
    Patience patience(*this, label, is_missing);
    for (auto now = Clock::now(); now < then; now = Clock::now()) {
        patience.check();
        std::this_thread::sleep_for(std::min<Clock::duration>(then - now, kSlice));
    }
}

uint64_t Comm::next_generation(const std::string& key) {
    std::lock_guard<std::mutex> lock(issue_mutex_);
    for (auto& [known, count] : generations_)
        if (known == key) return ++count;
    generations_.emplace_back(key, 1);
    return 1;
}

void Comm::close() {
    if (getpid() != owner_) return;  // a forked child runs none of the streams and speaks for nobody
    if (error() == HCCL_SUCCESS) turnstile_.wait_until_idle(kCloseGrace);
    closing_.store(true);
    turnstile_.wait_until_idle(kCloseGrace);
    leave_as(Presence::kLeft);
}

namespace {

struct Table {
    std::mutex mutex;
    std::unordered_map<HcclComm, std::shared_ptr<Comm>> comms;
};

// Leaked: handles are used and destroyed while static destructors run.
Table& table() {
    static auto* all = new Table;
    return *all;
}

std::shared_ptr<Comm> look_up(HcclComm handle, const char* function, bool is_removed) {
    std::lock_guard<std::mutex> lock(table().mutex);
    const auto found = table().comms.find(handle);
    if (found == table().comms.end()) {
        refuse(HCCL_E_PTR, std::string(function) + ": the communicator handle is not one of HCCL's, or was destroyed.");
        return nullptr;
    }
    auto comm = found->second;
    if (is_removed) table().comms.erase(found);
    return comm;
}

}  // namespace

HcclComm publish_comm(std::shared_ptr<Comm> comm) {
    std::lock_guard<std::mutex> lock(table().mutex);
    HcclComm handle = comm.get();
    table().comms.emplace(handle, std::move(comm));
    return handle;
}

std::shared_ptr<Comm> find_comm(HcclComm handle, const char* function) { return look_up(handle, function, false); }
std::shared_ptr<Comm> retract_comm(HcclComm handle, const char* function) { return look_up(handle, function, true); }

}  // namespace npu_sim::hccl
