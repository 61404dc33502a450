#include "runtime/stream.h"

#include <pthread.h>

#include <chrono>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "acl/acl.h"
#include "runtime/device.h"
#include "runtime/export.h"

namespace npu_sim {
namespace {

struct Registry {
    std::mutex mutex;
    std::unordered_map<aclrtStream, std::shared_ptr<Stream>> streams;
    std::unordered_map<int, std::shared_ptr<Stream>> defaults;
    int next_id = 1;
};

// Leaked: workers outlive static destructors.
Registry& registry() {
    static auto* all = new Registry;
    return *all;
}

}  // namespace

void Stream::push(Job job) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(job));
    pushed_.fetch_add(1, std::memory_order_release);
    if (!has_worker_) {
        has_worker_ = true;
        std::thread([keep = self_] { keep->work(); }).detach();
    }
    has_work_.notify_one();
}

void Stream::work() {
    pthread_setname_np(pthread_self(), ("npu-stream-" + std::to_string(id)).substr(0, 15).c_str());
    set_current_device(device);
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        has_work_.wait(lock, [this] { return !queue_.empty() || retired_; });
        if (queue_.empty()) return;
        Job job = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        const aclError failed = job(error_.load());
        job = nullptr;  // what the job holds is let go before anybody is told that it ran
        lock.lock();
        aclError none = ACL_SUCCESS;
        if (failed != ACL_SUCCESS) error_.compare_exchange_strong(none, failed);
        finished_.fetch_add(1, std::memory_order_release);
        has_finished_.notify_all();
    }
}

aclError Stream::drain(int timeout_ms) {
    if (!idle()) {
        std::unique_lock<std::mutex> lock(mutex_);
        const uint64_t target = pushed_.load();
        const auto reached = [&] { return finished_.load() >= target; };
        if (timeout_ms < 0)
            has_finished_.wait(lock, reached);
        else if (!has_finished_.wait_for(lock, std::chrono::milliseconds(timeout_ms), reached))
            return fail(kStreamSyncTimeout, "the stream did not finish within " + std::to_string(timeout_ms) + " ms.");
    }
    return error();
}

void Stream::retire() {
    std::lock_guard<std::mutex> lock(mutex_);
    retired_ = true;
    has_work_.notify_all();
    if (!has_worker_) self_.reset();
}

std::shared_ptr<Stream> make_stream(int device) {
    auto& all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto stream = std::make_shared<Stream>(device, all.next_id++);
    stream->self_ = stream;
    all.streams[stream.get()] = stream;
    return stream;
}

std::shared_ptr<Stream> stream_of(aclrtStream handle) {
    auto& all = registry();
    if (!handle && !use_some_device()) return nullptr;
    {
        std::lock_guard<std::mutex> lock(all.mutex);
        if (handle) {
            const auto found = all.streams.find(handle);
            return found == all.streams.end() ? nullptr : found->second;
        }
        const auto found = all.defaults.find(current_device());
        if (found != all.defaults.end()) return found->second;
    }
    auto made = make_stream(current_device());
    std::lock_guard<std::mutex> lock(all.mutex);
    return all.defaults.emplace(current_device(), made).first->second;
}

aclError drain_device(int device, int timeout_ms) {
    std::vector<std::shared_ptr<Stream>> streams;
    {
        std::lock_guard<std::mutex> lock(registry().mutex);
        for (const auto& entry : registry().streams)
            if (entry.second->device == device) streams.push_back(entry.second);
    }
    aclError first = ACL_SUCCESS;
    for (const auto& stream : streams) {
        const aclError failed = stream->drain(timeout_ms);
        if (first == ACL_SUCCESS) first = failed;
    }
    return first;
}

bool device_has_streams(int device) {
    std::lock_guard<std::mutex> lock(registry().mutex);
    for (const auto& entry : registry().streams)
        if (entry.second->device == device) return true;
    return false;
}

namespace {
aclError unknown_stream(const char* function) {
    return fail(kInvalidHandle, std::string(function) + ": the stream is not one of this runtime, or was destroyed.");
}
}  // namespace

aclError enqueue(aclrtStream handle, Task task) {
    const auto stream = stream_of(handle);
    if (!stream) return unknown_stream("enqueue");
    stream->push([task = std::move(task)](aclError before) { return before ? before : task(); });
    return ACL_SUCCESS;
}

// The handle is the object's address and a stream in use is alive: no look-up on this hot path.
bool is_idle(aclrtStream handle) {
    if (handle) return static_cast<Stream*>(handle)->idle() && static_cast<Stream*>(handle)->error() == ACL_SUCCESS;
    const auto stream = stream_of(handle);
    return !stream || (stream->idle() && stream->error() == ACL_SUCCESS);
}

aclError drain(aclrtStream handle) {
    const auto stream = stream_of(handle);
    return stream ? stream->drain() : unknown_stream("drain");
}

}  // namespace npu_sim

using namespace npu_sim;

NPU_SIM_API aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
    if (!use_some_device()) return fail(kContextNull, "aclrtCreateStream: call aclrtSetDevice first.");
    *stream = make_stream(current_device()).get();
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }

NPU_SIM_API aclError aclrtDestroyStreamForce(aclrtStream handle) {
    std::shared_ptr<Stream> stream;
    {
        std::lock_guard<std::mutex> lock(registry().mutex);
        const auto found = registry().streams.find(handle);
        if (found == registry().streams.end()) return kInvalidHandle;
        stream = found->second;
        registry().streams.erase(found);
    }
    stream->retire();
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtDestroyStream(aclrtStream handle) {
    const auto stream = stream_of(handle);
    if (!stream) return unknown_stream("aclrtDestroyStream");
    stream->drain();
    return aclrtDestroyStreamForce(handle);
}

NPU_SIM_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t timeout_ms) {
    const auto stream = stream_of(handle);
    return stream ? stream->drain(timeout_ms) : unknown_stream("aclrtSynchronizeStream");
}

NPU_SIM_API aclError aclrtSynchronizeStream(aclrtStream handle) { return aclrtSynchronizeStreamWithTimeout(handle, -1); }

NPU_SIM_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms) {
    if (!use_some_device()) return fail(kContextNull, "aclrtSynchronizeDevice: call aclrtSetDevice first.");
    return drain_device(current_device(), timeout_ms);
}

NPU_SIM_API aclError aclrtSynchronizeDevice() { return aclrtSynchronizeDeviceWithTimeout(-1); }

NPU_SIM_API aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus* status) {
    const auto stream = stream_of(handle);
    if (!stream) return unknown_stream("aclrtStreamQuery");
    *status = stream->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return stream->error();
}

NPU_SIM_API aclError aclrtStreamGetId(aclrtStream handle, int32_t* id) {
    const auto stream = stream_of(handle);
    if (!stream) return unknown_stream("aclrtStreamGetId");
    *id = stream->id;
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtLaunchHostFunc(aclrtStream handle, aclrtHostFunc function, void* arguments) {
    return enqueue(handle, [=] {
        function(arguments);
        return ACL_SUCCESS;
    });
}
