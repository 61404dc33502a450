// NPU_SIM_SLOW_LINK: links between two NPUs of this machine that carry less than the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hccl/config.h"

namespace npu_sim::hccl {

// A link joins two NPUs directly, as every pair of an Atlas A2's node is joined, and is equally slow both ways.
class SlowLinks {
  public:
    // Reads NPU_SIM_SLOW_LINK, "<NPU>-<NPU>:<MB/s>[,...]" with the machine's own numbers of NPUs. Returns nothing,
    // with the reason in `*why`, when that cannot be read.
    static std::optional<SlowLinks> read(std::string* why);

    // How long `bytes` take between two NPUs at least; zero between those that no slow link joins.
    Clock::duration time_for(int32_t npu, int32_t other, uint64_t bytes) const;

  private:
    struct Link {
        int32_t first;
        int32_t second;
        double bytes_per_second;
    };
    std::vector<Link> links_;
};

}  // namespace npu_sim::hccl
