// Device memory: one sparse memfd per NPU and process.
//
// Layout of the file: a header of 2 MiB (its first page holds the bytes in use, read by other processes that
// account for the same NPU), then `capacity` bytes that aclrtMalloc carves, then a zone of reserved addresses
// for expandable segments, where only mapped ranges count as used. A pointer's offset in the file is its
// pointer minus the base of the mapping, in every process that maps the file.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "runtime/sim.h"

namespace npu_sim {

constexpr uint64_t kHugePage = 2ull << 20;
constexpr uint64_t kAllocationAlign = 512;  // what torch_npu's caching allocator relies on

class Hbm {
  public:
    Hbm(int physical, uint64_t capacity);

    // Bytes free on this NPU after every process's allocations, and the capacity.
    void info(uint64_t* free_bytes, uint64_t* total_bytes);

    void* allocate(uint64_t bytes);  // nullptr when it does not fit
    bool release(void* pointer);     // false when the pointer is not an allocation

    // Expandable segments: address space first, memory later.
    void* reserve(uint64_t bytes, uint64_t alignment);
    bool unreserve(void* pointer);
    bool charge(uint64_t bytes);  // takes physical memory without an address; false when it does not fit
    void uncharge(uint64_t bytes);
    void discard(void* pointer, uint64_t bytes);  // gives the pages back to the host

    bool contains(const void* pointer, uint64_t bytes, uint64_t* offset) const;
    int fd() const { return fd_; }
    uint64_t mapped_bytes() const { return mapped_bytes_; }
    uint64_t in_use() const;

  private:
    uint64_t used_by_others();
    bool fits(uint64_t bytes);
    void set_in_use(int64_t delta);

    const uint64_t capacity_;
    const uint64_t mapped_bytes_;
    std::string name_;
    int fd_ = -1;
    char* base_ = nullptr;
    mutable std::mutex mutex_;
    std::map<uint64_t, uint64_t> free_;                      // offset -> bytes, coalesced
    std::unordered_map<uint64_t, uint64_t> allocated_;       // offset -> bytes
    std::map<uint64_t, uint64_t> free_addresses_;            // of the expandable zone
    std::unordered_map<uint64_t, uint64_t> reserved_;        // offset -> bytes
    double scanned_at_ = 0;
    uint64_t others_ = 0;
};

// The memory of visible device `device`, made on first use.
Hbm& hbm(int device);
// The memory that holds `pointer`, or nullptr.
Hbm* hbm_of(const void* pointer, uint64_t bytes, HbmLocation* location);

}  // namespace npu_sim
