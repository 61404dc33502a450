#include "hccl/root_server.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "hccl/control.h"
#include "hccl/socket.h"

namespace npu_sim::hccl {
namespace {

// Roots of this process that still wait, by name: the descriptor that ends each.
struct Roots {
    std::mutex mutex;
    std::map<std::string, int> stops;
};

// Leaked: threads of roots outlive static destructors.
Roots& roots() {
    static auto* all = new Roots;
    return *all;
}

class RootServer {
  public:
    RootServer(Fd listener, Fd stop, std::chrono::seconds patience)
        : listener_(std::move(listener)), stop_(std::move(stop)), patience_(patience) {}

    void run();

  private:
    struct Guest {
        Fd socket;
        std::optional<Message> hello;
        Fd memory;
    };

    void accept_guest();
    bool hear(Guest& guest);
    std::string objection(const Message& hello) const;
    void make_control(uint32_t ranks);
    void refuse_all(HcclResult result, const std::string& why);
    std::string absent() const;
    void introduce_all();
    size_t arrived() const;

    Fd listener_;
    Fd stop_;
    std::chrono::seconds patience_;
    std::vector<std::unique_ptr<Guest>> guests_;
    Fd control_fd_;
    std::unique_ptr<Control> control_;
};

size_t RootServer::arrived() const {
    size_t count = 0;
    for (const auto& guest : guests_) count += guest->hello.has_value();
    return count;
}

void RootServer::run() {
    while (true) {
        std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
        for (const auto& guest : guests_) polled.push_back({guest->socket.get(), POLLIN, 0});
        const int limit = guests_.empty() ? -1 : static_cast<int>(std::chrono::milliseconds(patience_).count());
        const int ready = poll(polled.data(), polled.size(), limit);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0 || polled[1].revents != 0) return;
        const size_t known = guests_.size();
        if (polled[0].revents != 0) accept_guest();
        for (size_t index = 0; index < known; ++index) {
            if (polled[index + 2].revents == 0) continue;
            if (!hear(*guests_[index])) return;
        }
        if (control_ && arrived() == control_->ranks()) return introduce_all();
    }
}

void RootServer::accept_guest() {
    Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.open() || !is_same_user(socket.get())) return;
    auto guest = std::make_unique<Guest>();
    guest->socket = std::move(socket);
    guests_.push_back(std::move(guest));
}

// Takes in what a guest says; false when the communicator cannot come about.
bool RootServer::hear(Guest& guest) {
    Message hello{};
    Fd memory;
    if (!receive_message(guest.socket.get(), &hello, &memory)) {
        if (guest.hello)
            refuse_all(HCCL_E_TIMEOUT, "rank " + std::to_string(guest.hello->rank) + " (pid " +
                                           std::to_string(guest.hello->pid) +
                                           ") ended or gave up before all had come; did not arrive: rank " + absent());
        else
            refuse_all(HCCL_E_TIMEOUT, "a process ended before it had said which rank it is");
        return false;
    }
    try {
        if (!control_) make_control(hello.ranks);
    } catch (const std::runtime_error& error) {
        refuse_all(HCCL_E_MEMORY, error.what());
        return false;
    }
    guest.hello = hello;
    if (const std::string why = objection(hello); !why.empty()) {
        refuse_all(HCCL_E_PARA, why);
        return false;
    }
    guest.memory = std::move(memory);
    RankState& state = control_->rank(hello.rank);
    state.pid = hello.pid;
    state.start_ticks = hello.start;
    state.physical_device = hello.device;
    state.presence.store(static_cast<uint32_t>(Presence::kPresent));
    Message welcome{};
    welcome.type = MessageType::kWelcome;
    welcome.ranks = control_->ranks();
    send_message(guest.socket.get(), welcome, control_fd_.get());
    return true;
}

// Why this rank cannot join those that are there; empty when it can.
std::string RootServer::objection(const Message& hello) const {
    const std::string self = "rank " + std::to_string(hello.rank) + " (pid " + std::to_string(hello.pid) + ")";
    if (hello.type != MessageType::kHello) return self + " did not introduce itself";
    if (hello.ranks != control_->ranks())
        return self + " expects " + std::to_string(hello.ranks) + " ranks, others " +
               std::to_string(control_->ranks());
    if (hello.rank >= hello.ranks)
        return self + " is outside a communicator of " + std::to_string(hello.ranks);
    for (const auto& other : guests_) {
        if (!other->hello || !other->memory.open()) continue;
        const std::string taken = "rank " + std::to_string(other->hello->rank) + " (pid " +
                                  std::to_string(other->hello->pid) + ")";
        if (other->hello->rank == hello.rank) return self + " comes twice: " + taken + " is there already";
        if (other->hello->device == hello.device && std::strcmp(other->hello->node, hello.node) == 0)
            return self + " and " + taken + " are both on NPU " + std::to_string(hello.device) +
                   "; give each rank its own, e.g. torch.npu.set_device(local_rank)";
    }
    return "";
}

void RootServer::make_control(uint32_t ranks) {
    if (ranks == 0) throw std::runtime_error("a communicator needs at least one rank");
    control_fd_.reset(memfd_create("npu-sim-hccl", MFD_CLOEXEC));
    if (!control_fd_.open() || ftruncate(control_fd_.get(), static_cast<off_t>(Control::bytes_for(ranks))) != 0)
        throw std::runtime_error(std::string("cannot make the control block: ") + strerror(errno));
    control_ = std::make_unique<Control>(control_fd_.get(), ranks);
}

// The ranks that have not come, as text.
std::string RootServer::absent() const {
    std::string text;
    for (uint32_t rank = 0; rank < control_->ranks(); ++rank)
        if (control_->rank(rank).presence.load() == static_cast<uint32_t>(Presence::kAbsent))
            text.append(text.empty() ? "" : ", ").append(std::to_string(rank));
    return text;
}

void RootServer::refuse_all(HcclResult result, const std::string& why) {
    Message message{};
    message.result = result;
    message.type = MessageType::kRefused;
    set_text(message.text, why);
    for (const auto& guest : guests_) send_message(guest->socket.get(), message);
}

void RootServer::introduce_all() {
    for (const auto& listener : guests_) {
        for (const auto& other : guests_) {
            if (!listener->hello || !other->hello || listener == other) continue;
            Message member = *other->hello;
            member.type = MessageType::kMember;
            send_message(listener->socket.get(), member, other->memory.get());
        }
        Message ready{};
        ready.type = MessageType::kReady;
        send_message(listener->socket.get(), ready);
    }
}

void block_signals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace

bool start_root(const std::string& name, std::chrono::seconds patience) {
    Fd listener = listen_at(name);
    Fd stop(eventfd(0, EFD_CLOEXEC));
    if (!listener.open() || !stop.open()) return false;
    std::lock_guard<std::mutex> lock(roots().mutex);
    roots().stops[name] = stop.get();
    auto server = std::make_shared<RootServer>(std::move(listener), std::move(stop), patience);
    std::thread([server, name]() mutable {
        block_signals();  // they are for the threads of the program
        pthread_setname_np(pthread_self(), "hccl-root");
        server->run();
        std::lock_guard<std::mutex> lock(roots().mutex);
        roots().stops.erase(name);
        server.reset();  // under the lock: stop_root() must not write to a descriptor that was closed
    }).detach();
    return true;
}

void stop_root(const std::string& name) {
    std::lock_guard<std::mutex> lock(roots().mutex);
    const auto found = roots().stops.find(name);
    if (found != roots().stops.end()) eventfd_write(found->second, 1);
}

}  // namespace npu_sim::hccl
