#include "hccl/messages.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <utility>

namespace npu_sim::hccl {
namespace {

// What is left to do with one peer in one direction.
struct Lane {
    std::deque<const Transfer*> left;
    bool is_posted = false;  // of the first, when it is a send
    std::optional<Clock::time_point> due;  // of the first, when it is a receive whose data are on their way
};

// How long other transfers may go unseen while data cross a slow link.
constexpr std::chrono::milliseconds kGlance{1};

class Exchange {
  public:
    Exchange(Comm& comm, const std::vector<Transfer>& transfers, const Label& label);
    void execute();

  private:
    bool advance();
    std::optional<Clock::time_point> next_due() const;
    bool advance_send(Lane& lane, uint32_t peer);
    bool advance_receive(Lane& lane, uint32_t peer);
    void check_match(const Mailbox& box, const Transfer& wanted) const;

    Comm& comm_;
    const Label& label_;
    std::map<std::pair<bool, uint32_t>, Lane> lanes_;  // by (is_send, peer)
};

Exchange::Exchange(Comm& comm, const std::vector<Transfer>& transfers, const Label& label)
    : comm_(comm), label_(label) {
    for (const Transfer& transfer : transfers) lanes_[{transfer.is_send, transfer.peer}].left.push_back(&transfer);
}

void Exchange::execute() {
    const std::function<bool(uint32_t)> is_missing = [this](uint32_t rank) {
        return lanes_.count({true, rank}) != 0 || lanes_.count({false, rank}) != 0;
    };
    const auto progress = [&] {
        while (true) {
            while (advance()) continue;
            const auto due = next_due();
            if (!due) return lanes_.empty();
            comm_.sleep_until(std::min<Clock::time_point>(*due, Clock::now() + kGlance), label_, is_missing);
        }
    };
    comm_.wait_for_bell(label_, progress, is_missing);
}

// Takes every lane one step further where it can; false when none could.
bool Exchange::advance() {
    bool moved = false;
    for (auto entry = lanes_.begin(); entry != lanes_.end();) {
        const auto [is_send, peer] = entry->first;
        moved |= is_send ? advance_send(entry->second, peer) : advance_receive(entry->second, peer);
        entry = entry->second.left.empty() ? lanes_.erase(entry) : std::next(entry);
    }
    return moved;
}

// When the first of the receives whose data are on their way is over; nothing if there is none.
std::optional<Clock::time_point> Exchange::next_due() const {
    std::optional<Clock::time_point> first;
    for (const auto& [key, lane] : lanes_)
        if (lane.due && (!first || *lane.due < *first)) first = lane.due;
    return first;
}

bool Exchange::advance_send(Lane& lane, uint32_t peer) {
    Mailbox& box = comm_.control().mailbox(comm_.rank(), peer);
    const bool is_free = box.taken.load() == box.posted.load();
    if (!is_free) return false;
    if (lane.is_posted) {
        lane.is_posted = false;
        lane.left.pop_front();
        return true;
    }
    const Transfer& next = *lane.left.front();
    box.type = next.type;
    box.count = next.count;
    box.offset = next.offset;
    box.posted.fetch_add(1);
    comm_.ring_bell(peer);
    lane.is_posted = true;
    return true;
}

bool Exchange::advance_receive(Lane& lane, uint32_t peer) {
    Mailbox& box = comm_.control().mailbox(peer, comm_.rank());
    if (box.posted.load() == box.taken.load()) return false;
    const Transfer& next = *lane.left.front();
    const uint64_t bytes = next.count * element_bytes(next.type);
    if (!lane.due) {
        check_match(box, next);
        lane.due = Clock::now() + comm_.crossing_time(peer, bytes);
    }
    if (Clock::now() < *lane.due) return false;
    lane.due.reset();
    const char* from = nullptr;
    if (peer != comm_.rank()) {
        from = comm_.memory(peer).at(box.offset);
    } else {
        // To itself: the sender's buffer is the one of the send lane's first transfer.
        from = lanes_.at({true, peer}).left.front()->buffer;
    }
    if (bytes > 0) std::memmove(next.buffer, from, bytes);
    box.taken.fetch_add(1);
    comm_.ring_bell(peer);
    lane.left.pop_front();
    return true;
}

void Exchange::check_match(const Mailbox& box, const Transfer& wanted) const {
    if (box.type == wanted.type && box.count == wanted.count) return;
    throw CommFailure(HCCL_E_PARA,
                      "EI0005: " + label_.text() + " on communicator '" + comm_.name() + "': rank " +
                          std::to_string(wanted.peer) + " sends " + std::to_string(box.count) + " " +
                          type_name(box.type) + ", but rank " + std::to_string(comm_.rank()) + " receives " +
                          std::to_string(wanted.count) + " " + type_name(wanted.type) + ".");
}

}  // namespace

void run_transfers(Comm& comm, const std::vector<Transfer>& transfers, const Label& label) {
    Exchange(comm, transfers, label).execute();
}

}  // namespace npu_sim::hccl
