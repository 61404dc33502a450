// Ranges of memory outside this process's own NPUs that copies have to know.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>

namespace npu_sim {

class HostRanges {
  public:
    void add(void* pointer, size_t bytes) {
        std::lock_guard<std::mutex> lock(mutex_);
        ranges_[static_cast<char*>(pointer)] = std::max<size_t>(bytes, 1);
    }
    bool remove(void* pointer) {
        std::lock_guard<std::mutex> lock(mutex_);
        return ranges_.erase(static_cast<char*>(pointer)) > 0;
    }
    bool contain(const void* pointer) const {
        std::lock_guard<std::mutex> lock(mutex_);
        const auto after = ranges_.upper_bound(static_cast<const char*>(pointer));
        if (after == ranges_.begin()) return false;
        const auto& range = *std::prev(after);
        return static_cast<const char*>(pointer) < range.first + range.second;
    }

  private:
    mutable std::mutex mutex_;
    std::map<const char*, size_t> ranges_;  // start -> bytes
};

// Host memory registered with aclrtHostRegister, and memory imported from another process's NPU: a copy may name
// such a range as host or as device.
HostRanges& accessible_from_both();

}  // namespace npu_sim
