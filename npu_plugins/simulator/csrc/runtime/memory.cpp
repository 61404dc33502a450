// Device memory, pinned host memory and copies.
#include <cstdlib>
#include <cstring>
#include <string>

#include "acl/acl.h"
#include "runtime/device.h"
#include "runtime/export.h"
#include "runtime/hbm.h"
#include "runtime/host_ranges.h"
#include "runtime/stream.h"

namespace npu_sim {
namespace {

// Allocated by aclrtMallocHost: pinned.
HostRanges& pinned() {
    static auto* all = new HostRanges;
    return *all;
}

aclError needs_device(const char* function) {
    return fail(kContextNull, std::string(function) + ": call aclrtSetDevice first.");
}

aclError too_large(const char* function, size_t count, size_t room) {
    return fail(kInvalidParameter, std::string(function) + ": " + std::to_string(count) +
                                       " bytes do not fit the destination of " + std::to_string(room) + " bytes.");
}

// A kind that says "device" for a pointer that is none (or the reverse) reads garbage on a card; here both
// are host memory, so the mistake would pass unseen if it were not looked for.
aclError check_kind(const char* function, const void* dst, const void* src, size_t bytes, aclrtMemcpyKind kind) {
    if (bytes == 0) return ACL_SUCCESS;
    if (accessible_from_both().contain(dst) || accessible_from_both().contain(src)) return ACL_SUCCESS;
    HbmLocation where;
    const bool to_device = locate(dst, bytes, &where);
    const bool from_device = locate(src, bytes, &where);
    bool right = true;
    if (kind == ACL_MEMCPY_HOST_TO_DEVICE) right = to_device && !from_device;
    if (kind == ACL_MEMCPY_DEVICE_TO_HOST) right = !to_device && from_device;
    if (kind == ACL_MEMCPY_DEVICE_TO_DEVICE) right = to_device && from_device;
    if (kind == ACL_MEMCPY_HOST_TO_HOST) right = !to_device && !from_device;
    if (right) return ACL_SUCCESS;
    return fail(kInvalidParameter, std::string(function) + ": copy kind " + std::to_string(kind) +
                                       " does not match where source and destination lie.");
}

}  // namespace

HostRanges& accessible_from_both() {
    static auto* all = new HostRanges;
    return *all;
}

}  // namespace npu_sim

using namespace npu_sim;

NPU_SIM_API aclError aclrtMallocAlign32(void** pointer, size_t bytes, aclrtMemMallocPolicy) {
    if (!use_some_device()) return needs_device("aclrtMalloc");
    *pointer = hbm(current_device()).allocate(bytes);
    if (*pointer) return ACL_SUCCESS;
    uint64_t free_bytes, total;
    hbm(current_device()).info(&free_bytes, &total);
    return fail(kOutOfMemory, "aclrtMalloc: " + std::to_string(bytes) + " bytes asked, " + std::to_string(free_bytes) +
                                  " of " + std::to_string(total) + " free on simulated NPU " +
                                  std::to_string(current_device()) + " (capacity: NPU_SIM_HBM).");
}

NPU_SIM_API aclError aclrtMalloc(void** pointer, size_t bytes, aclrtMemMallocPolicy policy) {
    return aclrtMallocAlign32(pointer, bytes, policy);
}

NPU_SIM_API aclError aclrtFree(void* pointer) {
    HbmLocation where;
    Hbm* memory = hbm_of(pointer, 1, &where);
    if (memory && memory->release(pointer)) return ACL_SUCCESS;
    return fail(kInvalidParameter, "aclrtFree: the pointer was not returned by aclrtMalloc, or is freed already.");
}

NPU_SIM_API aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free_bytes, size_t* total) {
    if (!use_some_device()) return needs_device("aclrtGetMemInfo");
    uint64_t available, capacity;
    hbm(current_device()).info(&available, &capacity);
    *free_bytes = available;
    *total = capacity;
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtMallocHost(void** pointer, size_t bytes) {
    constexpr size_t kPage = 4096;
    *pointer = std::aligned_alloc(kPage, (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage);
    if (!*pointer) return fail(kOutOfMemory, "aclrtMallocHost: the host has no " + std::to_string(bytes) + " bytes left.");
    pinned().add(*pointer, bytes);
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtMallocHostWithCfg(void** pointer, uint64_t bytes, aclrtMallocConfig*) {
    return aclrtMallocHost(pointer, bytes);
}

NPU_SIM_API aclError aclrtFreeHost(void* pointer) {
    if (!pinned().remove(pointer))
        return fail(kInvalidParameter, "aclrtFreeHost: the pointer was not returned by aclrtMallocHost.");
    std::free(pointer);
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtHostRegister(void* pointer, uint64_t bytes, aclrtHostRegisterType, void** device_pointer) {
    if (!pointer || bytes == 0)
        return fail(kInvalidParameter, "aclrtHostRegister: " + std::to_string(bytes) + " bytes cannot be registered.");
    accessible_from_both().add(pointer, bytes);
    *device_pointer = pointer;
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtHostRegisterV2(void* pointer, uint64_t bytes, uint32_t) {
    void* device_pointer;
    return aclrtHostRegister(pointer, bytes, ACL_HOST_REGISTER_MAPPED, &device_pointer);
}

NPU_SIM_API aclError aclrtHostUnregister(void* pointer) {
    if (accessible_from_both().remove(pointer)) return ACL_SUCCESS;
    return fail(kInvalidParameter, "aclrtHostUnregister: the pointer is not registered.");
}

NPU_SIM_API aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
    std::memset(attributes, 0, sizeof(*attributes));
    HbmLocation where;
    if (locate(pointer, 1, &where)) {
        attributes->location = {static_cast<uint32_t>(where.device), ACL_MEM_LOCATION_TYPE_DEVICE};
        attributes->pageSize = static_cast<uint32_t>(kHugePage);
    } else {
        const bool known = pinned().contain(pointer) || accessible_from_both().contain(pointer);
        attributes->location = {0, known ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_UNREGISTERED};
        attributes->pageSize = 4096;
    }
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtMemcpy(void* dst, size_t room, const void* src, size_t bytes, aclrtMemcpyKind kind) {
    if (bytes > room) return too_large("aclrtMemcpy", bytes, room);
    if (const aclError wrong = check_kind("aclrtMemcpy", dst, src, bytes, kind)) return wrong;
    std::memmove(dst, src, bytes);
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtMemcpyAsync(void* dst, size_t room, const void* src, size_t bytes, aclrtMemcpyKind kind,
                                      aclrtStream stream) {
    if (bytes > room) return too_large("aclrtMemcpyAsync", bytes, room);
    if (const aclError wrong = check_kind("aclrtMemcpyAsync", dst, src, bytes, kind)) return wrong;
    return enqueue(stream, [=] {
        std::memmove(dst, src, bytes);
        return ACL_SUCCESS;
    });
}

NPU_SIM_API aclError aclrtMemcpyAsyncWithCondition(void* dst, size_t room, const void* src, size_t bytes,
                                                   aclrtMemcpyKind kind, aclrtStream stream) {
    return aclrtMemcpyAsync(dst, room, src, bytes, kind, stream);
}

NPU_SIM_API aclError aclrtMemset(void* pointer, size_t room, int32_t value, size_t bytes) {
    if (bytes > room) return too_large("aclrtMemset", bytes, room);
    std::memset(pointer, value, bytes);
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtMemsetAsync(void* pointer, size_t room, int32_t value, size_t bytes, aclrtStream stream) {
    if (bytes > room) return too_large("aclrtMemsetAsync", bytes, room);
    return enqueue(stream, [=] {
        std::memset(pointer, value, bytes);
        return ACL_SUCCESS;
    });
}
