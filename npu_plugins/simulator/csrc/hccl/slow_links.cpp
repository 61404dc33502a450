#include "hccl/slow_links.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace npu_sim::hccl {

constexpr double kMegabyte = 1e6;
constexpr double kLeast = 0.001;  // MB/s: the whole memory of an NPU still takes a time that a clock can hold

std::optional<SlowLinks> SlowLinks::read(std::string* why) {
    SlowLinks read;
    const char* text = std::getenv("NPU_SIM_SLOW_LINK");
    if (text == nullptr) return read;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        Link link{};
        double megabytes = 0;
        int length = 0;
        const int found = sscanf(word.c_str(), "%d-%d:%lf%n", &link.first, &link.second, &megabytes, &length);
        if (found != 3 || word.size() != static_cast<size_t>(length) || !(megabytes >= kLeast)) {
            *why = std::string("EI0001: NPU_SIM_SLOW_LINK='") + text +
                   "' is no list of <NPU>-<NPU>:<MB/s>; correct it or unset it.";
            return std::nullopt;
        }
        link.bytes_per_second = megabytes * kMegabyte;
        read.links_.push_back(link);
    }
    return read;
}

Clock::duration SlowLinks::time_for(int32_t npu, int32_t other, uint64_t bytes) const {
    for (const Link& link : links_) {
        const bool is_this = (link.first == npu && link.second == other) || (link.first == other && link.second == npu);
        if (!is_this) continue;
        const std::chrono::duration<double> time(static_cast<double>(bytes) / link.bytes_per_second);
        return std::chrono::duration_cast<Clock::duration>(time);
    }
    return Clock::duration::zero();
}

}  // namespace npu_sim::hccl
