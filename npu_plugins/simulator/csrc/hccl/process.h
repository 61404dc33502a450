// Whether another process still lives.
#pragma once

#include <cstdint>

namespace npu_sim::hccl {

// Start time of process `pid` in clock ticks since boot, or 0 when it is gone or only a zombie. A pid may be
// reused, a (pid, start) pair is not.
uint64_t start_ticks(int32_t pid);

// True while the process that had this pid and start time runs.
inline bool is_running(int32_t pid, uint64_t start) { return start_ticks(pid) == start; }

}  // namespace npu_sim::hccl
