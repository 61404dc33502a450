#include "hccl/peer_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace npu_sim::hccl {
namespace {

struct Cache {
    std::mutex mutex;
    std::map<std::pair<dev_t, ino_t>, std::weak_ptr<PeerMemory>> mapped;
};

// Leaked: communicators may be torn down while static destructors run.
Cache& cache() {
    static auto* all = new Cache;
    return *all;
}

}  // namespace

std::shared_ptr<PeerMemory> PeerMemory::adopt(int fd, size_t bytes) {
    std::lock_guard<std::mutex> lock(cache().mutex);
    struct stat status {};
    if (fstat(fd, &status) != 0) {
        const int why = errno;
        close(fd);
        throw std::runtime_error(std::string("cannot read what a peer's device memory is: ") + strerror(why));
    }
    auto& slot = cache().mapped[{status.st_dev, status.st_ino}];
    if (auto known = slot.lock()) {
        close(fd);
        return known;
    }
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    const int why = errno;
    close(fd);  // the mapping keeps the memory; an open descriptor would count as use of that NPU
    if (base == MAP_FAILED)
        throw std::runtime_error("cannot map " + std::to_string(bytes) + " bytes of a peer's device memory: " +
                                 strerror(why) + "; raise `ulimit -v` or lower NPU_SIM_HBM.");
    // Advice only: where the host refuses huge pages, small ones serve.
    madvise(base, bytes, MADV_HUGEPAGE);
    std::shared_ptr<PeerMemory> made(new PeerMemory(static_cast<char*>(base), bytes));
    slot = made;
    return made;
}

PeerMemory::~PeerMemory() { munmap(base_, bytes_); }

}  // namespace npu_sim::hccl
