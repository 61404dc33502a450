#include "hccl/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "hccl/process.h"
#include "hccl/socket.h"

namespace npu_sim::hccl {
namespace {

constexpr std::chrono::milliseconds kRetry{20};

std::string place(uint32_t ranks, uint32_t rank) {
    return "rank " + std::to_string(rank) + " of " + std::to_string(ranks);
}

std::string absent_ranks(const Control& control) {
    std::string text;
    for (uint32_t rank = 0; rank < control.ranks(); ++rank)
        if (control.rank(rank).presence.load() == static_cast<uint32_t>(Presence::kAbsent))
            text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return text;
}

Fd connect_before(const std::string& name, uint32_t ranks, uint32_t rank, Clock::time_point deadline,
                  std::chrono::seconds timeout) {
    while (true) {
        Fd socket = connect_to(name);
        if (socket.open()) return socket;
        if (Clock::now() >= deadline)
            throw RendezvousError(HCCL_E_TIMEOUT,
                                  "EI0006: " + place(ranks, rank) + " could not reach the root of its communicator " +
                                      "within " + std::to_string(timeout.count()) + " s (HCCL_CONNECT_TIMEOUT); " +
                                      "see why the process of rank 0 ended or is late.");
        std::this_thread::sleep_for(kRetry);
    }
}

void introduce(const Fd& socket, uint32_t ranks, uint32_t rank, int device) {
    Message hello{};
    hello.type = MessageType::kHello;
    hello.ranks = ranks;
    hello.rank = rank;
    hello.pid = getpid();
    hello.start = start_ticks(hello.pid);
    hello.device = physical_device(device);
    hello.bytes = hbm_bytes(device);
    set_text(hello.node, node_name());
    // A refusal may be under way already: what comes back says why, so a failed send is not looked at.
    send_message(socket.get(), hello, hbm_fd(device));
}

// Waits for the next message until `deadline`; false when time is up.
bool is_readable(const Fd& socket, Clock::time_point deadline) {
    while (true) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
        pollfd polled{socket.get(), POLLIN, 0};
        const int ready = poll(&polled, 1, static_cast<int>(std::max<long>(left, 0)));
        if (ready > 0) return true;
        if (ready == 0) return false;
        if (errno != EINTR) return true;  // the receive that follows reports it
    }
}

}  // namespace

Membership join(const std::string& name, uint32_t ranks, uint32_t rank, int device, std::chrono::seconds timeout) {
    const auto deadline = Clock::now() + timeout;
    const Fd socket = connect_before(name, ranks, rank, deadline, timeout);
    introduce(socket, ranks, rank, device);
    Membership joined;
    joined.memory.resize(ranks);
    while (true) {
        if (!is_readable(socket, deadline)) {
            const std::string absent = joined.control ? absent_ranks(*joined.control) : "unknown";
            throw RendezvousError(HCCL_E_TIMEOUT,
                                  "EI0006: " + place(ranks, rank) + " waited " + std::to_string(timeout.count()) +
                                      " s (HCCL_CONNECT_TIMEOUT) for its communicator; did not arrive: rank " +
                                      absent + ".");
        }
        Message message{};
        Fd passed;
        if (!receive_message(socket.get(), &message, &passed))
            throw RendezvousError(HCCL_E_TCP_CONNECT, "EI0006: the root of the communicator of " + place(ranks, rank) +
                                                          " ended before all ranks had come.");
        if (message.type == MessageType::kReady) return joined;
        if (message.type == MessageType::kRefused)
            throw RendezvousError(static_cast<HcclResult>(message.result),
                                  "EI0006: the communicator of " + place(ranks, rank) +
                                      " did not come about: " + message.text + ".");
        try {
            if (message.type == MessageType::kWelcome)
                joined.control = std::make_unique<Control>(passed.get(), ranks);
            else if (message.type == MessageType::kMember)
                joined.memory.at(message.rank) = PeerMemory::adopt(passed.release(), message.bytes);
        } catch (const std::runtime_error& error) {
            throw RendezvousError(HCCL_E_MEMORY, place(ranks, rank) + ": " + error.what());
        }
    }
}

}  // namespace npu_sim::hccl
