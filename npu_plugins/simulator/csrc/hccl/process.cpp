#include "hccl/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

namespace npu_sim::hccl {

uint64_t start_ticks(int32_t pid) {
    const std::string path = "/proc/" + std::to_string(pid) + "/stat";
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    std::array<char, 1024> text{};
    const ssize_t bytes = read(fd, text.data(), text.size() - 1);
    close(fd);
    if (bytes <= 0) return 0;
    // The second field is the command in parentheses and may hold anything: count from its last ')'.
    const char* field = strrchr(text.data(), ')');
    if (field == nullptr || field[1] == '\0') return 0;
    field += 2;
    if (*field == 'Z' || *field == 'X') return 0;
    for (int index = 3; index < 22 && field != nullptr; ++index) {
        field = strchr(field, ' ');
        if (field != nullptr) ++field;
    }
    return field == nullptr ? 0 : std::strtoull(field, nullptr, 10);
}

}  // namespace npu_sim::hccl
