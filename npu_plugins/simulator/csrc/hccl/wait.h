// Waiting on a word of shared memory: a short spin, then futex sleeps, broken off when waiting is in vain.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>

namespace npu_sim::hccl {

// Sleeps while `*word == seen`, at most `limit`; may wake early. Works between processes.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds limit);
void futex_wake_all(std::atomic<uint32_t>& word);

// Adds one to or sets the word, and wakes those asleep on it.
void publish(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters, uint32_t value);
void ring(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters);

inline void cpu_relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// True once `done` holds; false when it did not within about `limit`. Burns the core: keep it short.
template <typename Done>
bool spin_until(Done done, std::chrono::nanoseconds limit) {
    if (done()) return true;
    const auto deadline = std::chrono::steady_clock::now() + limit;
    do {
        for (int turn = 0; turn < 16; ++turn) {
            cpu_relax();
            if (done()) return true;
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
}

// Waits until `done(value of word)`. Between sleeps of at most `kSlice` it asks `give_up()`; true ends the wait.
// Returns whether `done` held.
constexpr std::chrono::milliseconds kSlice{20};

template <typename Done, typename GiveUp>
bool wait_for(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters, Done done, GiveUp give_up,
              std::chrono::nanoseconds spin) {
    if (spin_until([&] { return done(word.load(std::memory_order_acquire)); }, spin)) return true;
    while (true) {
        waiters.fetch_add(1);
        const uint32_t seen = word.load();
        if (!done(seen)) futex_wait(word, seen, kSlice);
        waiters.fetch_sub(1);
        if (done(word.load(std::memory_order_acquire))) return true;
        if (give_up()) return false;
    }
}

}  // namespace npu_sim::hccl
