#include "hccl/socket.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace npu_sim::hccl {
namespace {

constexpr int kBacklog = 1024;

socklen_t abstract_address(const std::string& name, sockaddr_un* address) {
    *address = {};
    address->sun_family = AF_UNIX;
    // A leading zero byte puts the name in the abstract space: it vanishes with the socket.
    const size_t length = name.copy(address->sun_path + 1, sizeof(address->sun_path) - 1);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

}  // namespace

void Fd::reset(int fd) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
}

Fd listen_at(const std::string& name) {
    Fd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address;
    const socklen_t length = abstract_address(name, &address);
    if (!made.open() || bind(made.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        listen(made.get(), kBacklog) != 0)
        return Fd();
    return made;
}

Fd connect_to(const std::string& name) {
    Fd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address;
    const socklen_t length = abstract_address(name, &address);
    if (!made.open() || connect(made.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) return Fd();
    return made;
}

bool send_message(int socket, const Message& message, int passed) {
    iovec part{const_cast<Message*>(&message), sizeof(message)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (passed >= 0) {
        header.msg_control = control;
        header.msg_controllen = sizeof(control);
        cmsghdr* item = CMSG_FIRSTHDR(&header);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(item), &passed, sizeof(int));
    }
    while (true) {
        if (sendmsg(socket, &header, MSG_NOSIGNAL) >= 0) return true;
        // Too many descriptors under way: wait until some have arrived.
        if (errno == ETOOMANYREFS)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        else if (errno != EINTR)
            return false;
    }
}

bool receive_message(int socket, Message* message, Fd* passed) {
    iovec part{message, sizeof(*message)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    ssize_t bytes;
    int resets = 0;
    do {
        bytes = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
        // ECONNRESET comes before what the other side said last: ask once more for that.
    } while (bytes < 0 && (errno == EINTR || (errno == ECONNRESET && ++resets == 1)));
    for (cmsghdr* item = CMSG_FIRSTHDR(&header); bytes >= 0 && item != nullptr; item = CMSG_NXTHDR(&header, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
        int fd;
        std::memcpy(&fd, CMSG_DATA(item), sizeof(int));
        passed->reset(fd);
    }
    message->node[sizeof(message->node) - 1] = '\0';
    message->text[sizeof(message->text) - 1] = '\0';
    return bytes == static_cast<ssize_t>(sizeof(*message));
}

bool is_same_user(int socket) {
    ucred peer{};
    socklen_t length = sizeof(peer);
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

std::string random_hex(size_t bytes) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    while (bytes-- > 0) {
        unsigned char value;
        if (getrandom(&value, 1, 0) != 1) throw std::runtime_error("the host gives no random bytes (getrandom).");
        text += kDigits[value >> 4];
        text += kDigits[value & 15];
    }
    return text;
}

}  // namespace npu_sim::hccl
