#include "hccl/config.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace npu_sim::hccl {
namespace {

// CANN itself asks for HCCL_CONNECT_TIMEOUT >= 120; a shorter one is let through so that tests end soon.
bool read_seconds(const char* name, long least, std::chrono::seconds* out, std::string* why) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') return true;
    char* end = nullptr;
    errno = 0;
    const long value = std::strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < least || value > std::numeric_limits<int32_t>::max()) {
        *why = std::string("EI0001: ") + name + "='" + text + "' is not a number of seconds of at least " +
               std::to_string(least) + "; correct it or unset it.";
        return false;
    }
    *out = std::chrono::seconds(value);
    return true;
}

// Callers built against an older header pass a shorter struct, and say so in its first word.
bool has_field(const HcclCommConfig* config, size_t offset, size_t bytes) {
    if (config == nullptr) return false;
    size_t size = 0;
    std::memcpy(&size, config, sizeof(size));
    return size >= offset + bytes;
}

}  // namespace

std::optional<Timeouts> read_timeouts(const HcclCommConfig* config, std::string* why) {
    Timeouts timeouts;
    if (!read_seconds("HCCL_CONNECT_TIMEOUT", 1, &timeouts.connect, why)) return std::nullopt;
    if (!read_seconds("HCCL_EXEC_TIMEOUT", 0, &timeouts.exec, why)) return std::nullopt;
    if (has_field(config, offsetof(HcclCommConfig, hcclExecTimeOut), sizeof(config->hcclExecTimeOut)) &&
        config->hcclExecTimeOut != HCCL_COMM_EXECTIMEOUT_CONFIG_NOT_SET) {
        if (config->hcclExecTimeOut < 0) {
            *why = "EI0001: hcclExecTimeOut=" + std::to_string(config->hcclExecTimeOut) +
                   " in HcclCommConfig is negative; give seconds, or 0 to wait for ever.";
            return std::nullopt;
        }
        timeouts.exec = std::chrono::seconds(config->hcclExecTimeOut);
    }
    return timeouts;
}

std::string configured_name(const HcclCommConfig* config) {
    if (!has_field(config, offsetof(HcclCommConfig, hcclCommName), COMM_NAME_MAX_LENGTH)) return "";
    return std::string(config->hcclCommName, strnlen(config->hcclCommName, COMM_NAME_MAX_LENGTH));
}

std::string node_name() {
    const char* text = std::getenv("NPU_SIM_NODE");
    return text != nullptr && *text != '\0' ? text : "0";
}

}  // namespace npu_sim::hccl
