// Switches of the chip and of the operator compiler. What a switch governs on the host is either the only behaviour
// there is (INF/NAN arithmetic, deterministic kernels) or absent (compile options); a value that would need another
// behaviour is refused.
#include <map>
#include <mutex>
#include <string>

#include "acl/acl.h"
#include "acl/acl_op_compiler.h"
#include "runtime/device.h"
#include "runtime/export.h"
#include "runtime/stream.h"

using namespace npu_sim;

namespace {
struct SystemParameters {
    std::mutex mutex;
    std::map<int, int64_t> values;
};
SystemParameters& system_parameters() {
    static auto* all = new SystemParameters;
    return *all;
}
}  // namespace

NPU_SIM_API aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
    return mode == ACL_RT_OVERFLOW_MODE_INFNAN ? ACL_SUCCESS : refuse("aclrtSetDeviceSatMode(SATURATION)");
}
NPU_SIM_API aclError aclrtGetDeviceSatMode(aclrtFloatOverflowMode* mode) {
    *mode = ACL_RT_OVERFLOW_MODE_INFNAN;
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t on) {
    return on ? refuse("aclrtSetStreamOverflowSwitch(1)") : ACL_SUCCESS;
}
NPU_SIM_API aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* on) {
    *on = 0;
    return ACL_SUCCESS;
}
// After a failure a stream drops its later tasks (ACL_STOP_ON_FAILURE); going on is not simulated.
NPU_SIM_API aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t mode) {
    return mode == ACL_STOP_ON_FAILURE ? ACL_SUCCESS : refuse("aclrtSetStreamFailureMode(CONTINUE_ON_FAILURE)");
}
// Bounds on a single AI-core operator. Host kernels run on the calling thread, where nothing can end them;
// the waits inside collectives have their own bound (HCCL_EXEC_TIMEOUT).
NPU_SIM_API aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
NPU_SIM_API aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }

NPU_SIM_API aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
    std::lock_guard<std::mutex> lock(system_parameters().mutex);
    system_parameters().values[option] = value;
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
    std::lock_guard<std::mutex> lock(system_parameters().mutex);
    *value = system_parameters().values[option];
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
    return aclrtSetSysParamOpt(option, value);
}
NPU_SIM_API aclError aclrtCtxGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
    return aclrtGetSysParamOpt(option, value);
}

// Nothing is compiled: options of the operator compiler have nothing to act on.
NPU_SIM_API aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
NPU_SIM_API size_t aclGetCompileoptSize(aclCompileOpt) { return 1; }
NPU_SIM_API aclError aclGetCompileopt(aclCompileOpt, char* value, size_t length) {
    if (length > 0) value[0] = '\0';
    return ACL_SUCCESS;
}
