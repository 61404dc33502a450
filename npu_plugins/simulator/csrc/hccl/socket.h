// Messages and file descriptors between processes of this machine, over sockets without a name on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace npu_sim::hccl {

// A file descriptor that closes itself.
class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(other.release()) {}
    Fd& operator=(Fd&& other) noexcept {
        reset(other.release());
        return *this;
    }
    ~Fd() { reset(); }
    int get() const { return fd_; }
    bool open() const { return fd_ >= 0; }
    int release() { return std::exchange(fd_, -1); }
    void reset(int fd = -1);

  private:
    int fd_ = -1;
};

enum class MessageType : uint32_t { kHello = 1, kWelcome, kMember, kReady, kRefused };

// The one message of the rendezvous; fields that a type does not need stay zero.
struct Message {
    MessageType type;
    uint32_t ranks;
    uint32_t rank;
    int32_t pid;
    int32_t device;  // physical number of the NPU
    uint64_t start;  // of the process, in ticks since boot
    uint64_t bytes;  // size of the memory whose descriptor comes along
    char node[64];   // simulated machine
    uint32_t result;  // kRefused: HcclResult
    char text[512];   // kRefused: why
};

// A listening socket of that abstract name; not open() when the name is taken or the host refuses.
Fd listen_at(const std::string& name);
// A connection to that name; not open() when nobody listens there.
Fd connect_to(const std::string& name);

// Sends one message, with descriptor `passed` unless negative. False when the other side is gone.
bool send_message(int socket, const Message& message, int passed = -1);
// Receives one message and, if one came along, its descriptor. False at the end of the connection.
bool receive_message(int socket, Message* message, Fd* passed);

// True when the process at the other end belongs to this user.
bool is_same_user(int socket);

// `bytes` random bytes in hexadecimal.
std::string random_hex(size_t bytes);

// Copies `text` into a fixed field, cut to fit.
template <size_t N>
void set_text(char (&field)[N], const std::string& text) {
    field[text.copy(field, N - 1)] = '\0';
}

}  // namespace npu_sim::hccl
