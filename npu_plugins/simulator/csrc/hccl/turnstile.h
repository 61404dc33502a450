// Order of the operations of one communicator in this process, whichever streams they are on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

namespace npu_sim::hccl {

// Hands out turns and lets one pass at a time, in the order they were taken.
class Turnstile {
  public:
    uint64_t take() {
        std::lock_guard<std::mutex> lock(mutex_);
        return taken_++;
    }

    // Waits until all earlier turns are over; asks `give_up()` now and then, which may throw.
    template <typename GiveUp>
    void enter(uint64_t turn, std::chrono::milliseconds slice, GiveUp give_up) {
        std::unique_lock<std::mutex> lock(mutex_);
        while (!moved_.wait_for(lock, slice, [&] { return next_ == turn; })) {
            lock.unlock();
            give_up();
            lock.lock();
        }
    }

    // Ends a turn, also one that never entered because its stream had failed.
    void leave(uint64_t turn) {
        std::lock_guard<std::mutex> lock(mutex_);
        left_early_.insert(turn);
        while (left_early_.erase(next_) != 0) ++next_;
        moved_.notify_all();
    }

    // Waits until every turn taken is over; false when that takes longer than `limit`.
    bool wait_until_idle(std::chrono::milliseconds limit) {
        std::unique_lock<std::mutex> lock(mutex_);
        return moved_.wait_for(lock, limit, [&] { return next_ == taken_; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable moved_;
    std::set<uint64_t> left_early_;
    uint64_t taken_ = 0;
    uint64_t next_ = 0;
};

}  // namespace npu_sim::hccl
