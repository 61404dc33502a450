// The meeting point of a communicator's ranks: a thread in the process that made the root info.
#pragma once

#include <chrono>
#include <string>

namespace npu_sim::hccl {

// Starts a thread that listens at `name`, gathers all ranks, hands each the control block and every other
// rank's memory, and ends. Once a rank has come, it waits at most `patience` for the next. False when the name
// is taken.
bool start_root(const std::string& name, std::chrono::seconds patience);

// Ends the thread of a root of this process that nobody will come to; other names are left alone.
void stop_root(const std::string& name);

}  // namespace npu_sim::hccl
