#include "runtime/hbm.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <set>
#include <stdexcept>

#include "runtime/device.h"

namespace npu_sim {
namespace {

constexpr uint64_t kMagic = 0x4e50555f53494d31;  // "NPU_SIM1"
// Addresses per byte of capacity, for allocations and for reservations. A card maps pages wherever they lie, so that
// free memory in pieces serves a large allocation: here it finds its addresses behind the pieces.
constexpr uint64_t kAllocationFactor = 4;
constexpr uint64_t kReservationFactor = 8;
constexpr double kScanSeconds = 1.0;             // how stale the other processes' use may be

struct Header {
    uint64_t magic;
    std::atomic<uint64_t> in_use;
};

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

double now_seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

// First fit in a coalesced free list; UINT64_MAX when nothing fits.
uint64_t take(std::map<uint64_t, uint64_t>& free_list, uint64_t bytes, uint64_t alignment) {
    for (auto entry = free_list.begin(); entry != free_list.end(); ++entry) {
        const uint64_t start = round_up(entry->first, alignment);
        const uint64_t end = entry->first + entry->second;
        if (start + bytes > end) continue;
        const uint64_t head = entry->first;
        free_list.erase(entry);
        if (start > head) free_list[head] = start - head;
        if (end > start + bytes) free_list[start + bytes] = end - start - bytes;
        return start;
    }
    return UINT64_MAX;
}

void give_back(std::map<uint64_t, uint64_t>& free_list, uint64_t offset, uint64_t bytes) {
    auto next = free_list.lower_bound(offset);
    if (next != free_list.end() && offset + bytes == next->first) {
        bytes += next->second;
        next = free_list.erase(next);
    }
    if (next != free_list.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second == offset) {
            previous->second += bytes;
            return;
        }
    }
    free_list[offset] = bytes;
}

// What one open descriptor of another process says, if it is the memory named `link`; counts each file once.
uint64_t read_in_use(const std::string& path, std::set<ino_t>& seen) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    struct stat status;
    uint64_t in_use = 0;
    if (fstat(fd, &status) == 0 && seen.insert(status.st_ino).second) {
        std::array<uint64_t, 2> header{};
        if (pread(fd, header.data(), sizeof(header), 0) == sizeof(header) && header[0] == kMagic) in_use = header[1];
    }
    close(fd);
    return in_use;
}

}  // namespace

Hbm::Hbm(int physical, uint64_t capacity)
    : capacity_(capacity), mapped_bytes_(kHugePage + round_up(capacity, kHugePage) * (kAllocationFactor + kReservationFactor)) {
    const char* node = getenv("NPU_SIM_NODE");
    name_ = std::string("npu-sim:") + (node && *node ? node : "0") + ":" + std::to_string(physical);
    fd_ = memfd_create(name_.c_str(), MFD_CLOEXEC);
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(mapped_bytes_)) != 0)
        throw std::runtime_error("cannot make the simulated memory of NPU " + std::to_string(physical) + ": " +
                                 strerror(errno));
    void* base = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
    if (base == MAP_FAILED)
        throw std::runtime_error("cannot map " + std::to_string(mapped_bytes_) +
                                 " bytes of address space for simulated NPU " + std::to_string(physical) + ": " +
                                 strerror(errno) + "; set NPU_SIM_HBM lower or raise `ulimit -v`.");
    base_ = static_cast<char*>(base);
    new (base_) Header{kMagic, {0}};
    const uint64_t zone = round_up(capacity, kHugePage) * kAllocationFactor;
    free_[kHugePage] = zone;
    free_addresses_[kHugePage + zone] = mapped_bytes_ - kHugePage - zone;
}

uint64_t Hbm::in_use() const { return reinterpret_cast<Header*>(base_)->in_use.load(); }
void Hbm::set_in_use(int64_t delta) { reinterpret_cast<Header*>(base_)->in_use += delta; }

// Other processes on the same NPU show as descriptors of equal name below /proc: nothing is registered
// anywhere, so nothing can be left behind by a process that is killed.
uint64_t Hbm::used_by_others() {
    if (now_seconds() - scanned_at_ < kScanSeconds) return others_;
    const std::string link = "/memfd:" + name_ + " (deleted)";
    struct stat own;
    fstat(fd_, &own);
    std::set<ino_t> seen{own.st_ino};
    uint64_t total = 0;
    DIR* processes = opendir("/proc");
    for (dirent* process = processes ? readdir(processes) : nullptr; process; process = readdir(processes)) {
        if (process->d_name[0] < '1' || process->d_name[0] > '9') continue;
        const std::string folder = std::string("/proc/") + process->d_name + "/fd";
        DIR* descriptors = opendir(folder.c_str());
        if (!descriptors) continue;  // another user's, or gone by now
        while (dirent* descriptor = readdir(descriptors)) {
            const std::string path = folder + "/" + descriptor->d_name;
            std::array<char, 256> target;
            const ssize_t length = readlink(path.c_str(), target.data(), target.size());
            if (length == static_cast<ssize_t>(link.size()) && !link.compare(0, length, target.data(), length))
                total += read_in_use(path, seen);
        }
        closedir(descriptors);
    }
    if (processes) closedir(processes);
    scanned_at_ = now_seconds();
    return others_ = total;
}

bool Hbm::fits(uint64_t bytes) { return in_use() + bytes + used_by_others() <= capacity_; }

void Hbm::info(uint64_t* free_bytes, uint64_t* total_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t used = in_use() + used_by_others();
    *free_bytes = used < capacity_ ? capacity_ - used : 0;
    *total_bytes = capacity_;
}

void* Hbm::allocate(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes = round_up(std::max<uint64_t>(bytes, 1), kAllocationAlign);
    if (bytes > capacity_ || !fits(bytes)) return nullptr;
    const uint64_t offset = take(free_, bytes, bytes >= kHugePage ? kHugePage : kAllocationAlign);
    if (offset == UINT64_MAX) return nullptr;
    allocated_[offset] = bytes;
    set_in_use(static_cast<int64_t>(bytes));
    return base_ + offset;
}

bool Hbm::release(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = allocated_.find(static_cast<uint64_t>(static_cast<char*>(pointer) - base_));
    if (found == allocated_.end()) return false;
    discard(pointer, found->second);
    give_back(free_, found->first, found->second);
    set_in_use(-static_cast<int64_t>(found->second));
    allocated_.erase(found);
    return true;
}

void* Hbm::reserve(uint64_t bytes, uint64_t alignment) {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes = round_up(bytes, kHugePage);
    const uint64_t offset = take(free_addresses_, bytes, std::max(alignment, kHugePage));
    if (offset == UINT64_MAX) return nullptr;
    reserved_[offset] = bytes;
    return base_ + offset;
}

bool Hbm::unreserve(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = reserved_.find(static_cast<uint64_t>(static_cast<char*>(pointer) - base_));
    if (found == reserved_.end()) return false;
    give_back(free_addresses_, found->first, found->second);
    reserved_.erase(found);
    return true;
}

bool Hbm::charge(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!fits(bytes)) return false;
    set_in_use(static_cast<int64_t>(bytes));
    return true;
}

void Hbm::uncharge(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    set_in_use(-static_cast<int64_t>(bytes));
}

void Hbm::discard(void* pointer, uint64_t bytes) {
    const auto offset = static_cast<off_t>(static_cast<char*>(pointer) - base_);
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, static_cast<off_t>(bytes));
}

bool Hbm::contains(const void* pointer, uint64_t bytes, uint64_t* offset) const {
    const auto* address = static_cast<const char*>(pointer);
    if (address < base_ || address + bytes > base_ + mapped_bytes_) return false;
    *offset = static_cast<uint64_t>(address - base_);
    return true;
}

namespace {
struct AllHbm {
    std::mutex mutex;
    std::array<std::atomic<Hbm*>, kMaxDevices> devices{};
};

// Leaked: stream workers may touch device memory while static destructors run.
AllHbm& all_hbm() {
    static auto* all = new AllHbm;
    return *all;
}
}  // namespace

Hbm& hbm(int device) {
    auto& slot = all_hbm().devices.at(static_cast<size_t>(device));
    if (Hbm* made = slot.load()) return *made;
    std::lock_guard<std::mutex> lock(all_hbm().mutex);
    if (!slot.load()) slot = new Hbm(physical_device(device), machine().hbm_bytes);
    return *slot.load();
}

Hbm* hbm_of(const void* pointer, uint64_t bytes, HbmLocation* location) {
    for (int device = 0; device < device_count(); ++device) {
        Hbm* memory = all_hbm().devices[static_cast<size_t>(device)].load();
        if (memory && memory->contains(pointer, bytes, &location->offset)) {
            location->device = device;
            return memory;
        }
    }
    return nullptr;
}

bool locate(const void* ptr, size_t bytes, HbmLocation* out) { return hbm_of(ptr, bytes, out) != nullptr; }
int hbm_fd(int device) { return hbm(device).fd(); }
size_t hbm_bytes(int device) { return hbm(device).mapped_bytes(); }

}  // namespace npu_sim
