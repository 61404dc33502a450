// The message that goes with the last failed call.
#include "runtime/export.h"

#include <mutex>

namespace npu_sim {
namespace {
struct LastError {
    std::mutex mutex;
    std::string pending;
    std::string reported;
};

// Leaked on purpose: stream workers may still fail while static destructors run.
LastError& last_error() {
    static auto* state = new LastError;
    return *state;
}
}  // namespace

aclError fail(aclError code, const std::string& message) {
    auto& state = last_error();
    std::lock_guard<std::mutex> lock(state.mutex);
    // Several workers can fail before anybody asks: keep them all, first cause first, within reason.
    if (state.pending.size() < 16384) {
        if (!state.pending.empty()) state.pending += "\n";
        state.pending += message;
    }
    return code;
}

}  // namespace npu_sim

NPU_SIM_API const char* aclGetRecentErrMsg() {
    auto& state = npu_sim::last_error();
    std::lock_guard<std::mutex> lock(state.mutex);
    if (state.pending.empty()) return nullptr;
    state.reported = std::move(state.pending);
    state.pending.clear();
    return state.reported.c_str();
}
