// Initialisation, devices and contexts, and what the chip says of itself: an Ascend 910B3 under CANN 8.5.
#include "runtime/device.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "acl/acl.h"
#include "runtime/export.h"
#include "runtime/hbm.h"
#include "runtime/stream.h"

namespace npu_sim {
namespace {
thread_local int this_thread_device = -1;

constexpr const char* kSocName = "Ascend910B3";
constexpr const char* kCannVersion = "8.5.0";
// Public figures of the 910B3: 20 cube cores, 40 vector cores, 192 MiB L2.
constexpr int64_t kCubeCores = 20;
constexpr int64_t kVectorCores = 40;
constexpr int64_t kL2Bytes = 192ll << 20;

Machine read_machine() {
    const char* count_text = getenv("NPU_SIM");
    const char* hbm_text = getenv("NPU_SIM_HBM_BYTES");
    return {count_text ? std::min(atoi(count_text), kMaxDevices) : 0,
            hbm_text ? strtoull(hbm_text, nullptr, 10) : 64ull << 30};
}

// Physical numbers of what ASCEND_RT_VISIBLE_DEVICES lets this process see.
std::vector<int> read_visible() {
    const int count = machine().count;
    std::vector<int> result;
    const char* visible = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (!visible) {
        for (int device = 0; device < count; ++device) result.push_back(device);
        return result;
    }
    // As CANN: the list ends at the first entry that is no device of the machine.
    std::stringstream entries(visible);
    for (std::string entry; std::getline(entries, entry, ',');) {
        char* end = nullptr;
        const long device = strtol(entry.c_str(), &end, 10);
        if (end == entry.c_str() || device < 0 || device >= count) break;
        result.push_back(static_cast<int>(device));
    }
    return result;
}

// What this process sees from its first use of a device on; until then the variable may still change.
std::atomic<const std::vector<int>*>& settled_visible() {
    static std::atomic<const std::vector<int>*> visible{nullptr};
    return visible;
}

void settle_visible() {
    if (settled_visible().load()) return;
    const auto* mine = new std::vector<int>(read_visible());
    const std::vector<int>* nobody = nullptr;
    if (!settled_visible().compare_exchange_strong(nobody, mine)) delete mine;
}

bool valid(int device) { return device >= 0 && device < device_count(); }

aclError invalid_device(const char* function, int device) {
    return fail(kInvalidDevice, std::string(function) + ": device " + std::to_string(device) + " is not one of the " +
                                    std::to_string(device_count()) + " visible NPUs.");
}

std::atomic<int>& default_device() {
    static std::atomic<int> device{-1};
    return device;
}

// {"defaultDevice": {"default_device": "0"}} in the file given to aclInit; -1 if it names none.
int read_default_device(const char* path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    static const std::regex entry("\"default_device\"\\s*:\\s*\"([0-9]+)\"");
    std::smatch found;
    const std::string content = text.str();
    if (!std::regex_search(content, found, entry)) return -1;
    const int device = std::stoi(found[1]);
    return valid(device) ? device : -1;
}

// A context is only ever compared and handed back; its address encodes the device.
char context_of_device[kMaxDevices];
}  // namespace

const Machine& machine() {
    static const Machine* result = new Machine(read_machine());
    return *result;
}

int current_device() { return this_thread_device; }
void set_current_device(int device) { this_thread_device = device; }

bool use_some_device() {
    if (this_thread_device < 0) this_thread_device = default_device();
    return this_thread_device >= 0;
}

int physical_device_count() { return machine().count; }

int device_count() {
    const auto* settled = settled_visible().load();
    return static_cast<int>(settled ? settled->size() : read_visible().size());
}

int physical_device(int device) {
    settle_visible();
    return settled_visible().load()->at(static_cast<size_t>(device));
}

}  // namespace npu_sim

using namespace npu_sim;

NPU_SIM_API aclError aclInit(const char* config_path) {
    if (config_path) default_device() = read_default_device(config_path);
    static std::atomic<bool> initialised{false};
    return initialised.exchange(true) ? ACL_ERROR_REPEAT_INITIALIZE : ACL_SUCCESS;
}

NPU_SIM_API aclError aclFinalize() { return ACL_SUCCESS; }

NPU_SIM_API aclError aclrtGetDeviceCount(uint32_t* count) {
    *count = static_cast<uint32_t>(device_count());
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtSetDevice(int32_t device) {
    settle_visible();
    if (!valid(device)) return invalid_device("aclrtSetDevice", device);
    set_current_device(device);
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtResetDevice(int32_t device) {
    if (!valid(device)) return invalid_device("aclrtResetDevice", device);
    return drain_device(device);
}

NPU_SIM_API aclError aclrtGetDevice(int32_t* device) {
    if (current_device() < 0) return kContextNull;  // torch_npu probes for this code: no message
    *device = current_device();
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtGetCurrentContext(aclrtContext* context) {
    if (current_device() < 0) return kContextNull;
    *context = &context_of_device[current_device()];
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtSetCurrentContext(aclrtContext context) {
    const auto device = static_cast<char*>(context) - context_of_device;
    if (device < 0 || device >= device_count())
        return fail(kInvalidHandle, "aclrtSetCurrentContext: the context was not made by this runtime.");
    set_current_device(static_cast<int>(device));
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
    if (!valid(device)) return invalid_device("aclrtGetPrimaryCtxState", device);
    if (flags) *flags = 0;
    if (active) *active = device_has_streams(device) ? 1 : 0;
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t* const logic) {
    if (!valid(user)) return invalid_device("aclrtGetLogicDevIdByUserDevId", user);
    *logic = physical_device(user);
    return ACL_SUCCESS;
}

NPU_SIM_API const char* aclrtGetSocName() { return kSocName; }

NPU_SIM_API aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
    std::memset(version, 0, sizeof(*version));
    std::strncpy(version->version, kCannVersion, sizeof(version->version) - 1);
    std::strncpy(version->majorVersion, "8", sizeof(version->majorVersion) - 1);
    std::strncpy(version->minorVersion, "5", sizeof(version->minorVersion) - 1);
    std::strncpy(version->releaseVersion, "0", sizeof(version->releaseVersion) - 1);
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclGetDeviceCapability(uint32_t device, aclDeviceInfo info, int64_t* value) {
    if (!valid(static_cast<int>(device))) return invalid_device("aclGetDeviceCapability", static_cast<int>(device));
    switch (info) {
        case ACL_DEVICE_INFO_AI_CORE_NUM: *value = kCubeCores; return ACL_SUCCESS;
        case ACL_DEVICE_INFO_VECTOR_CORE_NUM: *value = kVectorCores; return ACL_SUCCESS;
        case ACL_DEVICE_INFO_L2_SIZE: *value = kL2Bytes; return ACL_SUCCESS;
        default: return refuse("aclGetDeviceCapability of this attribute");
    }
}

NPU_SIM_API aclError aclrtGetDeviceInfo(uint32_t device, aclrtDevAttr attribute, int64_t* value) {
    if (!valid(static_cast<int>(device))) return invalid_device("aclrtGetDeviceInfo", static_cast<int>(device));
    switch (attribute) {
        case ACL_DEV_ATTR_AICORE_CORE_NUM:
        case ACL_DEV_ATTR_CUBE_CORE_NUM: *value = kCubeCores; return ACL_SUCCESS;
        case ACL_DEV_ATTR_VECTOR_CORE_NUM: *value = kVectorCores; return ACL_SUCCESS;
        case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: *value = static_cast<int64_t>(machine().hbm_bytes); return ACL_SUCCESS;
        case ACL_DEV_ATTR_L2_CACHE_SIZE: *value = kL2Bytes; return ACL_SUCCESS;
        case ACL_DEV_ATTR_PHY_CHIP_ID: *value = physical_device(static_cast<int>(device)); return ACL_SUCCESS;
        case ACL_DEV_ATTR_IS_VIRTUAL: *value = 0; return ACL_SUCCESS;
        default: return refuse("aclrtGetDeviceInfo of this attribute");
    }
}

// "npu-sim" and the physical number: equal in every process of the machine, different for every NPU.
NPU_SIM_API aclError aclrtDeviceGetUuid(int32_t device, aclrtUuid* uuid) {
    if (!valid(device)) return invalid_device("aclrtDeviceGetUuid", device);
    std::memset(uuid, 0, sizeof(*uuid));
    std::memcpy(uuid->bytes, "npu-sim", 7);
    uuid->bytes[15] = static_cast<char>(physical_device(device));
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtDeviceGetBareTgid(int32_t* pid) {
    *pid = getpid();
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtDeviceCanAccessPeer(int32_t* can_access, int32_t device, int32_t peer) {
    if (!valid(device)) return invalid_device("aclrtDeviceCanAccessPeer", device);
    if (!valid(peer)) return invalid_device("aclrtDeviceCanAccessPeer", peer);
    *can_access = 1;  // all memory is the host's
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t) {
    return valid(peer) ? ACL_SUCCESS : invalid_device("aclrtDeviceEnablePeerAccess", peer);
}
