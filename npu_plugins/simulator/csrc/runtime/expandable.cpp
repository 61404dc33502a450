// Expandable segments: addresses reserved first, memory mapped into them later (PYTORCH_NPU_ALLOC_CONF).
#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "acl/acl.h"
#include "runtime/device.h"
#include "runtime/export.h"
#include "runtime/hbm.h"

namespace npu_sim {
namespace {

struct Physical {
    int device;
    size_t bytes;
};

struct Mappings {
    std::mutex mutex;
    std::map<void*, size_t> mapped;  // address -> bytes
};

Mappings& mappings() {
    static auto* all = new Mappings;
    return *all;
}

}  // namespace
}  // namespace npu_sim

using namespace npu_sim;

NPU_SIM_API aclError aclrtReserveMemAddress(void** address, size_t bytes, size_t alignment, void* expected, uint64_t) {
    // Addresses belong to the process: torch_npu reserves some, to see whether it can, before it sets a device.
    const int device = std::max(current_device(), 0);
    if (expected) return refuse("aclrtReserveMemAddress at a wished address");
    *address = hbm(device).reserve(bytes, alignment);
    if (*address) return ACL_SUCCESS;
    return fail(kOutOfMemory, "aclrtReserveMemAddress: no " + std::to_string(bytes) + " bytes of address space left.");
}

NPU_SIM_API aclError aclrtReleaseMemAddress(void* address) {
    HbmLocation where;
    Hbm* memory = hbm_of(address, 1, &where);
    if (memory && memory->unreserve(address)) return ACL_SUCCESS;
    return fail(kInvalidParameter, "aclrtReleaseMemAddress: the address was not reserved.");
}

NPU_SIM_API aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t bytes, const aclrtPhysicalMemProp* wanted,
                                         uint64_t) {
    if (wanted->location.type != ACL_MEM_LOCATION_TYPE_DEVICE) return refuse("aclrtMallocPhysical in host memory");
    const int device = static_cast<int>(wanted->location.id);
    if (!hbm(device).charge(bytes))
        return fail(kOutOfMemory, "aclrtMallocPhysical: simulated NPU " + std::to_string(device) + " has no " +
                                      std::to_string(bytes) + " bytes left (capacity: NPU_SIM_HBM).");
    *handle = new Physical{device, bytes};
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
    auto* physical = static_cast<Physical*>(handle);
    hbm(physical->device).uncharge(physical->bytes);
    delete physical;
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtMapMem(void* address, size_t bytes, size_t offset, aclrtDrvMemHandle handle, uint64_t) {
    HbmLocation where;
    if (offset != 0) return refuse("aclrtMapMem with an offset");
    if (!locate(address, bytes, &where) || where.device != static_cast<Physical*>(handle)->device)
        return fail(kInvalidParameter, "aclrtMapMem: the address was not reserved on the memory's NPU.");
    std::lock_guard<std::mutex> lock(mappings().mutex);
    mappings().mapped[address] = bytes;
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtUnmapMem(void* address) {
    std::lock_guard<std::mutex> lock(mappings().mutex);
    const auto found = mappings().mapped.find(address);
    HbmLocation where;
    Hbm* memory = found == mappings().mapped.end() ? nullptr : hbm_of(address, found->second, &where);
    if (!memory) return fail(kInvalidParameter, "aclrtUnmapMem: nothing is mapped at that address.");
    memory->discard(address, found->second);
    mappings().mapped.erase(found);
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*) {
    return refuse("aclrtMemExportToShareableHandle");
}
NPU_SIM_API aclError aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) {
    return refuse("aclrtMemSetPidToShareableHandle");
}
NPU_SIM_API aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, aclrtDrvMemHandle*) {
    return refuse("aclrtMemImportFromShareableHandle");
}
