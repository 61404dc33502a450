// Process-wide settings, names of results, and the functions of HCCL that are not simulated.
#include <atomic>

#include "hccl/types.h"

using namespace npu_sim::hccl;

namespace {

std::atomic<int32_t>& deterministic() {
    static std::atomic<int32_t> value{0};
    return value;
}

HcclResult not_simulated(const char* function, const char* instead) {
    return refuse(HCCL_E_NOT_SUPPORT, std::string(function) + " is not simulated: " + instead);
}

}  // namespace

// Reductions always fold in rank order here, so either value holds; it is kept for HcclGetConfig.
extern "C" NPU_SIM_EXPORT HcclResult HcclSetConfig(HcclConfig config, HcclConfigValue configValue) {
    if (config != HCCL_DETERMINISTIC)
        return not_simulated("HcclSetConfig", "only HCCL_DETERMINISTIC can be set on a simulated NPU.");
    deterministic() = configValue.value;
    return HCCL_SUCCESS;
}

extern "C" NPU_SIM_EXPORT HcclResult HcclGetConfig(HcclConfig config, HcclConfigValue* configValue) {
    if (config != HCCL_DETERMINISTIC)
        return not_simulated("HcclGetConfig", "only HCCL_DETERMINISTIC can be asked for on a simulated NPU.");
    if (configValue == nullptr) return refuse(HCCL_E_PTR, "HcclGetConfig: configValue is null.");
    configValue->value = deterministic();
    return HCCL_SUCCESS;
}

// All fields of HcclCommConfig are known; those that only tune links and algorithms change nothing here.
extern "C" NPU_SIM_EXPORT uint32_t HcclGetCommConfigCapability() { return HCCL_COMM_CONFIG_RESERVED; }

extern "C" NPU_SIM_EXPORT const char* HcclGetErrorString(HcclResult code) { return result_name(code); }

extern "C" NPU_SIM_EXPORT HcclResult HcclCommInitClusterInfo(const char*, uint32_t, HcclComm*) {
    return not_simulated("HcclCommInitClusterInfo", "use root info instead of a rank table (unset RANK_TABLE_FILE).");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommInitClusterInfoConfig(const char*, uint32_t, HcclCommConfig*, HcclComm*) {
    return not_simulated("HcclCommInitClusterInfoConfig",
                         "use root info instead of a rank table (unset RANK_TABLE_FILE).");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommSuspend(HcclComm) {
    return not_simulated("HcclCommSuspend", "destroy the process group and make it anew.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommResume(HcclComm) {
    return not_simulated("HcclCommResume", "destroy the process group and make it anew.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommWorkingDevNicSet(HcclComm, uint32_t*, bool*, uint32_t) {
    return not_simulated("HcclCommWorkingDevNicSet", "simulated NPUs have no network cards to switch.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommSetMemoryRange(HcclComm, void*, size_t, size_t, uint64_t) {
    return not_simulated("HcclCommSetMemoryRange", "unset HCCL_ZERO_COPY.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommUnsetMemoryRange(HcclComm, void*) {
    return not_simulated("HcclCommUnsetMemoryRange", "unset HCCL_ZERO_COPY.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommActivateCommMemory(HcclComm, void*, size_t, size_t, aclrtDrvMemHandle,
                                                                uint64_t) {
    return not_simulated("HcclCommActivateCommMemory", "unset HCCL_ZERO_COPY.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommDeactivateCommMemory(HcclComm, void*) {
    return not_simulated("HcclCommDeactivateCommMemory", "unset HCCL_ZERO_COPY.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommRegister(HcclComm, void*, uint64_t, void**, uint32_t) {
    return not_simulated("HcclCommRegister", "window memory needs a real NPU.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommDeregister(HcclComm, void*) {
    return not_simulated("HcclCommDeregister", "window memory needs a real NPU.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommExchangeMem(HcclComm, void*, uint32_t*, uint32_t) {
    return not_simulated("HcclCommExchangeMem", "window memory needs a real NPU.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommSymWinRegister(HcclComm, void*, uint64_t, void**, uint32_t) {
    return not_simulated("HcclCommSymWinRegister", "symmetric windows need a real NPU.");
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommSymWinDeregister(void*) {
    return not_simulated("HcclCommSymWinDeregister", "symmetric windows need a real NPU.");
}
