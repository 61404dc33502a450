// How a simulated ACL function is declared, and how one that is not simulated refuses.
#pragma once

#include "runtime/sim.h"

#define NPU_SIM_API extern "C" __attribute__((visibility("default")))

namespace npu_sim {

// Runtime codes of CANN that its public headers name in comments only (rt_error_codes.h of a CANN install).
constexpr aclError kInvalidParameter = 107000;
constexpr aclError kInvalidDevice = 107001;
constexpr aclError kContextNull = 107002;
constexpr aclError kInvalidHandle = 107017;
constexpr aclError kNotSupported = 207000;
constexpr aclError kOutOfMemory = 207001;
constexpr aclError kStreamSyncTimeout = 107020;

// "<function> is not simulated" as an ACL error: the rule of the whole simulator is that nothing returns
// success without having done its work.
inline aclError refuse(const char* function) {
    return fail(kNotSupported, std::string(function) +
                                   " is not simulated by npu-plugins: run this on a real NPU, or report the need.");
}

}  // namespace npu_sim
