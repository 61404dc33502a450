// Other ranks' HBM, mapped into this process.
#pragma once

#include <cstddef>
#include <memory>

namespace npu_sim::hccl {

// One memfd, mapped. Communicators of the same two processes share the mapping.
class PeerMemory {
  public:
    // Maps the memory behind `fd` (which is closed in every case) or finds it mapped already. Throws
    // std::runtime_error when it cannot.
    static std::shared_ptr<PeerMemory> adopt(int fd, size_t bytes);
    ~PeerMemory();

    char* at(uint64_t offset) const { return base_ + offset; }

  private:
    PeerMemory(char* base, size_t bytes) : base_(base), bytes_(bytes) {}
    char* base_;
    size_t bytes_;
};

}  // namespace npu_sim::hccl
