// What the environment and HcclCommConfig say about waiting.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "hccl/types.h"

namespace npu_sim::hccl {

using Clock = std::chrono::steady_clock;

// How long to wait; zero seconds means for ever, as HCCL_EXEC_TIMEOUT=0 does.
struct Timeouts {
    std::chrono::seconds connect{120};
    std::chrono::seconds exec{1836};
};

// Reads HCCL_CONNECT_TIMEOUT (s) and HCCL_EXEC_TIMEOUT (s); `config` may be null and wins where it sets
// hcclExecTimeOut. Returns nothing, with the reason in `*why`, when a value is not a number of seconds.
std::optional<Timeouts> read_timeouts(const HcclCommConfig* config, std::string* why);

// The communicator's name in `config`, empty when none is given.
std::string configured_name(const HcclCommConfig* config);

// NPU_SIM_NODE: the simulated machine this process is on ("0" unless set).
std::string node_name();

}  // namespace npu_sim::hccl
