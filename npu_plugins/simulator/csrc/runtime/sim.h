// What the other simulated libraries (HCCL, compute) may ask of the simulated ACL runtime.
// Everything here lives in libascendcl.so, has C++ linkage and is exported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "acl/acl_base.h"
#include "acl/acl_rt.h"

#define NPU_SIM_EXPORT __attribute__((visibility("default")))

namespace npu_sim {

// A task of a stream. A non-zero result poisons the stream: every later task is dropped and every
// synchronisation of the stream returns that code, as on a card.
using Task = std::function<aclError()>;

// Appends `task` to the stream's queue; a worker thread runs the queue in order. Returns at once.
// `stream == nullptr` is the current device's default stream.
NPU_SIM_EXPORT aclError enqueue(aclrtStream stream, Task task);

// True when nothing is queued or running on the stream (one atomic load).
NPU_SIM_EXPORT bool is_idle(aclrtStream stream);

// Waits until all tasks queued so far have run; returns the stream's error, if any.
NPU_SIM_EXPORT aclError drain(aclrtStream stream);

// Keeps `message` as what aclGetRecentErrMsg() reports next (process-wide: the error of a stream worker
// is asked for by another thread) and returns `code`, so that `return fail(code, "…")` reads well.
NPU_SIM_EXPORT aclError fail(aclError code, const std::string& message);

// The calling thread's device, or -1 before aclrtSetDevice.
NPU_SIM_EXPORT int current_device();

// Number of NPUs of the machine, visible to this process or not.
NPU_SIM_EXPORT int physical_device_count();

// Number of NPUs this process sees, after ASCEND_RT_VISIBLE_DEVICES.
NPU_SIM_EXPORT int device_count();

// Physical number of visible device `device`.
NPU_SIM_EXPORT int physical_device(int device);

// Device memory. Each device of a process is one sparse memfd mapped once, MAP_SHARED (its "HBM"): a
// process that is sent the descriptor can map it and reach every allocation by its offset.
struct HbmLocation {
    int device;       // visible device number in this process
    uint64_t offset;  // bytes from the start of that device's memory
};
// True if [ptr, ptr + bytes) lies inside one device's memory.
NPU_SIM_EXPORT bool locate(const void* ptr, size_t bytes, HbmLocation* out);
NPU_SIM_EXPORT int hbm_fd(int device);
NPU_SIM_EXPORT size_t hbm_bytes(int device);  // size of the mapping

}  // namespace npu_sim
