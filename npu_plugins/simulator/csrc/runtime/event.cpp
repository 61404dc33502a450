// Events: a record is a task of a stream; a wait holds back another stream's later tasks.
#include <condition_variable>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "acl/acl.h"
#include "runtime/export.h"
#include "runtime/stream.h"

namespace npu_sim {
namespace {

// One event may be recorded again and again; each record is a generation. A wait is for the generation that
// was current when the wait was issued.
struct Event {
    std::mutex mutex;
    std::condition_variable completed;
    uint64_t recorded_generation = 0;
    uint64_t completed_generation = 0;
    uint64_t completed_at_ns = 0;
    aclError error = ACL_SUCCESS;  // of the stream, when its record was reached
};

struct Events {
    std::mutex mutex;
    std::unordered_map<aclrtEvent, std::shared_ptr<Event>> alive;
};

Events& events() {
    static auto* all = new Events;
    return *all;
}

std::shared_ptr<Event> event_of(aclrtEvent handle) {
    std::lock_guard<std::mutex> lock(events().mutex);
    const auto found = events().alive.find(handle);
    return found == events().alive.end() ? nullptr : found->second;
}

uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

void complete(Event& event, uint64_t generation, aclError error) {
    std::lock_guard<std::mutex> lock(event.mutex);
    event.completed_generation = std::max(event.completed_generation, generation);
    event.completed_at_ns = now_ns();
    event.error = error;
    event.completed.notify_all();
}

aclError wait_for(Event& event, uint64_t generation) {
    std::unique_lock<std::mutex> lock(event.mutex);
    event.completed.wait(lock, [&] { return event.completed_generation >= generation; });
    return event.error;
}

aclError unknown_event(const char* function) {
    return fail(kInvalidHandle, std::string(function) + ": the event is not one of this runtime, or was destroyed.");
}

}  // namespace
}  // namespace npu_sim

using namespace npu_sim;

NPU_SIM_API aclError aclrtCreateEventExWithFlag(aclrtEvent* handle, uint32_t flag) {
    if (flag & ACL_EVENT_IPC) return refuse("aclrtCreateEventExWithFlag with ACL_EVENT_IPC");
    auto event = std::make_shared<Event>();
    *handle = event.get();
    std::lock_guard<std::mutex> lock(events().mutex);
    events().alive[*handle] = event;
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtCreateEventWithFlag(aclrtEvent* handle, uint32_t flag) {
    return aclrtCreateEventExWithFlag(handle, flag);
}

NPU_SIM_API aclError aclrtCreateEvent(aclrtEvent* handle) { return aclrtCreateEventExWithFlag(handle, 0); }

NPU_SIM_API aclError aclrtDestroyEvent(aclrtEvent handle) {
    std::lock_guard<std::mutex> lock(events().mutex);
    return events().alive.erase(handle) ? ACL_SUCCESS : unknown_event("aclrtDestroyEvent");
}

NPU_SIM_API aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
    const auto event = event_of(handle);
    if (!event) return unknown_event("aclrtRecordEvent");
    const auto stream = stream_of(stream_handle);
    if (!stream) return fail(kInvalidHandle, "aclrtRecordEvent: unknown stream.");
    uint64_t generation;
    {
        std::lock_guard<std::mutex> lock(event->mutex);
        generation = ++event->recorded_generation;
    }
    if (stream->idle()) {  // nothing before it: the record is reached now, and no thread need wake
        complete(*event, generation, stream->error());
        return ACL_SUCCESS;
    }
    stream->push([event, generation](aclError before) {
        complete(*event, generation, before);
        return before;
    });
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtResetEvent(aclrtEvent handle, aclrtStream) {
    // Events made by aclrtCreateEventExWithFlag, the only kind torch_npu makes, need no reset between records.
    return event_of(handle) ? ACL_SUCCESS : unknown_event("aclrtResetEvent");
}

NPU_SIM_API aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
    const auto event = event_of(handle);
    if (!event) return unknown_event("aclrtStreamWaitEvent");
    const auto stream = stream_of(stream_handle);
    if (!stream) return fail(kInvalidHandle, "aclrtStreamWaitEvent: unknown stream.");
    uint64_t generation;
    {
        std::lock_guard<std::mutex> lock(event->mutex);
        generation = event->recorded_generation;
        if (event->completed_generation >= generation && event->error == ACL_SUCCESS) return ACL_SUCCESS;
    }
    stream->push([event, generation](aclError before) { return before ? before : wait_for(*event, generation); });
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtSynchronizeEvent(aclrtEvent handle) {
    const auto event = event_of(handle);
    if (!event) return unknown_event("aclrtSynchronizeEvent");
    uint64_t generation;
    {
        std::lock_guard<std::mutex> lock(event->mutex);
        generation = event->recorded_generation;
    }
    return wait_for(*event, generation);
}

NPU_SIM_API aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
    const auto event = event_of(handle);
    if (!event) return unknown_event("aclrtQueryEventStatus");
    std::lock_guard<std::mutex> lock(event->mutex);
    *status = event->completed_generation >= event->recorded_generation ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                                                        : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return event->error;
}

NPU_SIM_API aclError aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus* status) {
    const auto event = event_of(handle);
    if (!event) return unknown_event("aclrtQueryEventWaitStatus");
    std::lock_guard<std::mutex> lock(event->mutex);
    *status = event->completed_generation >= event->recorded_generation ? ACL_EVENT_WAIT_STATUS_COMPLETE
                                                                        : ACL_EVENT_WAIT_STATUS_NOT_READY;
    return event->error;
}

NPU_SIM_API aclError aclrtEventElapsedTime(float* ms, aclrtEvent start_handle, aclrtEvent end_handle) {
    const auto start = event_of(start_handle);
    const auto end = event_of(end_handle);
    if (!start || !end) return unknown_event("aclrtEventElapsedTime");
    std::scoped_lock lock(start->mutex, end->mutex);
    if (!start->completed_at_ns || !end->completed_at_ns)
        return fail(kInvalidParameter, "aclrtEventElapsedTime: both events must have been recorded and reached.");
    *ms = static_cast<float>(static_cast<double>(end->completed_at_ns) - static_cast<double>(start->completed_at_ns)) * 1e-6f;
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtEventGetTimestamp(aclrtEvent handle, uint64_t* microseconds) {
    const auto event = event_of(handle);
    if (!event) return unknown_event("aclrtEventGetTimestamp");
    std::lock_guard<std::mutex> lock(event->mutex);
    *microseconds = event->completed_at_ns / 1000;
    return ACL_SUCCESS;
}
