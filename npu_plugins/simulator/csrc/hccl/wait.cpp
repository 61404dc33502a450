#include "hccl/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace npu_sim::hccl {

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds limit) {
    const timespec time{static_cast<time_t>(limit.count() / 1000000000), static_cast<long>(limit.count() % 1000000000)};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void publish(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters, uint32_t value) {
    word.store(value);
    if (waiters.load() != 0) futex_wake_all(word);
}

void ring(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters) {
    word.fetch_add(1);
    if (waiters.load() != 0) futex_wake_all(word);
}

}  // namespace npu_sim::hccl
