// Streams: a queue and, from the first task that has to wait, a worker thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/sim.h"

namespace npu_sim {

class Stream {
  public:
    // A queued task is told the stream's error so far (0 if none) and returns its own.
    using Job = std::function<aclError(aclError)>;

    explicit Stream(int device, int id) : device(device), id(id) {}

    void push(Job job);
    bool idle() const { return finished_.load(std::memory_order_acquire) == pushed_.load(std::memory_order_acquire); }
    aclError error() const { return error_.load(std::memory_order_acquire); }
    // Waits for everything pushed so far, at most `timeout_ms` (negative: for ever).
    aclError drain(int timeout_ms = -1);
    // Lets the worker end once the queue is empty.
    void retire();

    const int device;
    const int id;

  private:
    void work();

    std::mutex mutex_;
    std::condition_variable has_work_;
    std::condition_variable has_finished_;
    std::deque<Job> queue_;
    std::atomic<uint64_t> pushed_{0};
    std::atomic<uint64_t> finished_{0};
    std::atomic<aclError> error_{ACL_SUCCESS};
    bool has_worker_ = false;
    bool retired_ = false;
    std::shared_ptr<Stream> self_;  // keeps the stream alive while its worker runs

    friend std::shared_ptr<Stream> make_stream(int device);
};

std::shared_ptr<Stream> make_stream(int device);
// The stream behind an ACL handle; nullptr means the current device's default stream.
std::shared_ptr<Stream> stream_of(aclrtStream handle);
aclError drain_device(int device, int timeout_ms = -1);
bool device_has_streams(int device);

}  // namespace npu_sim
