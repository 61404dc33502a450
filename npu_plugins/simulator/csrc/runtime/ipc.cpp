// Device memory shared between processes by key: the importer maps the exporter's file.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "acl/acl.h"
#include "runtime/export.h"
#include "runtime/host_ranges.h"

namespace npu_sim {
namespace {

constexpr uint64_t kPage = 4096;

struct Mapping {
    char* base;
    size_t bytes;
    void* pointer;  // what the importer was given
};

struct Imports {
    std::mutex mutex;
    std::map<std::string, Mapping> by_key;
};

Imports& imports() {
    static auto* all = new Imports;
    return *all;
}

// pid:descriptor:offset:bytes, which fits the 64 characters that callers offer.
struct Key {
    int pid;
    int fd;
    unsigned long long offset;
    unsigned long long bytes;

    bool parse(const char* text) { return std::sscanf(text, "%d:%d:%llx:%llx", &pid, &fd, &offset, &bytes) == 4; }
    int print(char* text, size_t room) const {
        return std::snprintf(text, room, "%d:%d:%llx:%llx", pid, fd, offset, bytes);
    }
};

}  // namespace
}  // namespace npu_sim

using namespace npu_sim;

NPU_SIM_API aclError aclrtIpcMemGetExportKey(void* pointer, size_t bytes, char* text, size_t room, uint64_t) {
    HbmLocation where;
    if (!locate(pointer, bytes, &where))
        return fail(kInvalidParameter, "aclrtIpcMemGetExportKey: the range is not memory of a simulated NPU.");
    const Key key{getpid(), hbm_fd(where.device), where.offset, bytes};
    if (key.print(text, room) < static_cast<int>(room)) return ACL_SUCCESS;
    return fail(kInvalidParameter, "aclrtIpcMemGetExportKey: a key does not fit " + std::to_string(room) + " bytes.");
}

NPU_SIM_API aclError aclrtIpcMemImportByKey(void** pointer, const char* text, uint64_t) {
    Key key;
    if (!key.parse(text)) return fail(kInvalidParameter, "aclrtIpcMemImportByKey: this is no key of simulated memory.");
    const std::string path = "/proc/" + std::to_string(key.pid) + "/fd/" + std::to_string(key.fd);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return fail(kInvalidParameter, "aclrtIpcMemImportByKey: process " + std::to_string(key.pid) +
                                           ", which exported the memory, has ended or belongs to another user.");
    const uint64_t lead = key.offset % kPage;
    void* base = mmap(nullptr, key.bytes + lead, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      static_cast<off_t>(key.offset - lead));
    close(fd);
    if (base == MAP_FAILED) return fail(kOutOfMemory, "aclrtIpcMemImportByKey: no address space left.");
    *pointer = static_cast<char*>(base) + lead;
    accessible_from_both().add(*pointer, key.bytes);
    std::lock_guard<std::mutex> lock(imports().mutex);
    imports().by_key[text] = {static_cast<char*>(base), key.bytes + lead, *pointer};
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclrtIpcMemClose(const char* text) {
    Key key;
    if (!key.parse(text)) return fail(kInvalidParameter, "aclrtIpcMemClose: this is no key of simulated memory.");
    std::lock_guard<std::mutex> lock(imports().mutex);
    const auto found = imports().by_key.find(text);
    if (found == imports().by_key.end()) {
        if (key.pid == getpid()) return ACL_SUCCESS;  // the exporter's: there is nothing to unmap
        return fail(kInvalidParameter, "aclrtIpcMemClose: the key was not imported here, or is closed already.");
    }
    accessible_from_both().remove(found->second.pointer);
    munmap(found->second.base, found->second.bytes);
    imports().by_key.erase(found);
    return ACL_SUCCESS;
}
