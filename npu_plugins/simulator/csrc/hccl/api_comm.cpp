// Making, asking about and destroying communicators.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>

#include "hccl/comm.h"
#include "hccl/rendezvous.h"
#include "hccl/root_server.h"
#include "hccl/socket.h"

using namespace npu_sim::hccl;

namespace {

constexpr char kMagic[8] = {'N', 'P', 'U', 'S', 'I', 'M', 'C', '1'};
constexpr char kPrefix[] = "hccl-sim-";
constexpr size_t kSecretBytes = 16;
// How long a root waits for its next guest: longer than the guests do, so that they say what went wrong.
constexpr std::chrono::seconds kRootPatience{30};

// What HcclRootInfo carries.
struct RootInfo {
    char magic[sizeof(kMagic)];
    char meeting[96];
};
static_assert(sizeof(RootInfo) <= HCCL_ROOT_INFO_BYTES);

// Where the ranks meet, or empty when this is no root info of the simulator.
std::string meeting_of(const HcclRootInfo& info) {
    RootInfo body;
    std::memcpy(&body, info.internal, sizeof(body));
    if (std::memcmp(body.magic, kMagic, sizeof(kMagic)) != 0) return "";
    return std::string(body.meeting, strnlen(body.meeting, sizeof(body.meeting)));
}

// Fills in the timeouts, the slow links and the name; HCCL_E_PARA when they cannot be read.
HcclResult configure(const HcclCommConfig* config, CommPlan* plan) {
    std::string why;
    const auto timeouts = read_timeouts(config, &why);
    if (!timeouts) return refuse(HCCL_E_PARA, why);
    const auto slow_links = SlowLinks::read(&why);
    if (!slow_links) return refuse(HCCL_E_PARA, why);
    plan->timeouts = *timeouts;
    plan->slow_links = *slow_links;
    plan->name = configured_name(config);
    if (plan->name.empty()) plan->name = plan->meeting;
    return HCCL_SUCCESS;
}

// Runs the body of a C function: no C++ exception may leave it.
template <typename Body>
HcclResult guarded(const char* function, Body body) {
    try {
        return body();
    } catch (const RendezvousError& error) {
        return refuse(error.result, error.what());
    } catch (const std::exception& error) {
        return refuse(HCCL_E_INTERNAL, std::string(function) + ": " + error.what());
    }
}

HcclResult make_comm(const char* function, const CommPlan& plan, HcclComm* out) {
    return guarded(function, [&] {
        *out = publish_comm(Comm::make(plan));
        return HCCL_SUCCESS;
    });
}

// Opens a meeting point under a new secret name and puts it into `*out`.
HcclResult make_root(const char* function, HcclRootInfo* out) {
    CommPlan plan;
    if (const HcclResult result = configure(nullptr, &plan); result != HCCL_SUCCESS) return result;
    RootInfo body{};
    std::memcpy(body.magic, kMagic, sizeof(kMagic));
    const std::string meeting = kPrefix + random_hex(kSecretBytes);
    set_text(body.meeting, meeting);
    if (!start_root(meeting, plan.timeouts.connect + kRootPatience))
        return refuse(HCCL_E_SYSCALL, std::string(function) + ": cannot open a socket for the ranks to meet: " +
                                          strerror(errno));
    std::memset(out->internal, 0, sizeof(out->internal));
    std::memcpy(out->internal, &body, sizeof(body));
    return HCCL_SUCCESS;
}

HcclResult init_by_root(const char* function, uint32_t ranks, const HcclRootInfo* root, uint32_t rank,
                        const HcclCommConfig* config, HcclComm* out) {
    if (root == nullptr || out == nullptr)
        return refuse(HCCL_E_PTR, std::string(function) + ": rootInfo or comm is null.");
    if (rank >= ranks)
        return refuse(HCCL_E_PARA, std::string(function) + ": rank " + std::to_string(rank) + " is outside " +
                                       std::to_string(ranks) + " ranks.");
    CommPlan plan;
    plan.meeting = meeting_of(*root);
    if (plan.meeting.empty())
        return refuse(HCCL_E_PARA, std::string(function) + ": rootInfo was not made by HcclGetRootInfo.");
    plan.ranks = ranks;
    plan.rank = rank;
    plan.device = npu_sim::current_device();
    if (plan.device < 0)
        return refuse(HCCL_E_RUNTIME, std::string(function) + ": no device is set; call aclrtSetDevice first.");
    if (const HcclResult result = configure(config, &plan); result != HCCL_SUCCESS) return result;
    return make_comm(function, plan, out);
}

// All ranks of one process: each joins on a thread of its own, since joining waits for all others.
HcclResult init_all(uint32_t ranks, const int32_t* devices, HcclComm* comms) {
    HcclRootInfo root;
    if (const HcclResult result = make_root("HcclCommInitAll", &root); result != HCCL_SUCCESS) return result;
    std::vector<HcclResult> results(ranks, HCCL_SUCCESS);
    std::vector<std::jthread> joining;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        joining.emplace_back([&, rank] {
            CommPlan plan{meeting_of(root), "", ranks, rank, devices[rank], {}, {}};
            results[rank] = configure(nullptr, &plan);
            if (results[rank] == HCCL_SUCCESS) results[rank] = make_comm("HcclCommInitAll", plan, &comms[rank]);
        });
    }
    joining.clear();  // waits for them
    for (const HcclResult result : results)
        if (result != HCCL_SUCCESS) return result;
    return HCCL_SUCCESS;
}

// FNV-1a; two seeds give two independent halves of a name.
uint64_t hash(const std::string& text, uint64_t seed) {
    for (const char letter : text) seed = (seed ^ static_cast<unsigned char>(letter)) * 1099511628211ull;
    return seed;
}

// Where the members of a sub-communicator meet: they derive it alike, without talking. Socket names are short,
// so all but the secret of the first ancestor is hashed.
std::string sub_meeting(Comm& parent, uint64_t id, const uint32_t* ranks, uint32_t count) {
    std::string key = parent.meeting() + "/" + std::to_string(id);
    for (uint32_t index = 0; index < count; ++index) key.append(",").append(std::to_string(ranks[index]));
    const uint64_t generation = parent.next_generation(key);  // the same group may be made again
    key.append("/").append(std::to_string(generation));
    char text[40];
    snprintf(text, sizeof(text), "-%016llx%016llx", static_cast<unsigned long long>(hash(key, 1469598103934665603ull)),
             static_cast<unsigned long long>(hash(key, 0x9e3779b97f4a7c15ull)));
    return parent.meeting().substr(0, sizeof(kPrefix) - 1 + 2 * kSecretBytes) + text;
}

}  // namespace

extern "C" NPU_SIM_EXPORT HcclResult HcclGetRootInfo(HcclRootInfo* rootInfo) {
    if (rootInfo == nullptr) return refuse(HCCL_E_PTR, "HcclGetRootInfo: rootInfo is null.");
    return guarded("HcclGetRootInfo", [&] { return make_root("HcclGetRootInfo", rootInfo); });
}

extern "C" NPU_SIM_EXPORT HcclResult HcclGetRootInfoScalable(HcclRootInfo* rootInfo) {
    return HcclGetRootInfo(rootInfo);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo* rootInfo, uint32_t rank,
                                                          HcclComm* comm) {
    return init_by_root("HcclCommInitRootInfo", nRanks, rootInfo, rank, nullptr, comm);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommInitRootInfoConfig(uint32_t nRanks, const HcclRootInfo* rootInfo,
                                                                uint32_t rank, const HcclCommConfig* config,
                                                                HcclComm* comm) {
    return init_by_root("HcclCommInitRootInfoConfig", nRanks, rootInfo, rank, config, comm);
}

// Several roots spread the load of a big cluster; on one machine the first serves all and the rest go home.
extern "C" NPU_SIM_EXPORT HcclResult HcclCommInitRootInfoScalable(uint32_t nRanks, uint32_t nRoot,
                                                                  const HcclRootInfo* rootInfoList, uint32_t rank,
                                                                  uint32_t nExtRoot, const HcclCommConfig* config,
                                                                  HcclComm* comm) {
    if (rootInfoList == nullptr || nRoot == 0)
        return refuse(HCCL_E_PTR, "HcclCommInitRootInfoScalable: rootInfoList is empty.");
    if (nExtRoot != 0) return refuse(HCCL_E_NOT_SUPPORT, "HcclCommInitRootInfoScalable: nExtRoot must be 0.");
    for (uint32_t index = 1; index < nRoot; ++index) stop_root(meeting_of(rootInfoList[index]));
    return init_by_root("HcclCommInitRootInfoScalable", nRanks, rootInfoList, rank, config, comm);
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommInitAll(uint32_t ndev, int32_t* devices, HcclComm* comms) {
    if (ndev == 0 || devices == nullptr || comms == nullptr)
        return refuse(HCCL_E_PTR, "HcclCommInitAll: no devices or no place for their communicators.");
    return guarded("HcclCommInitAll", [&] { return init_all(ndev, devices, comms); });
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCreateSubCommConfig(HcclComm* comm, uint32_t rankNum, uint32_t* rankIds,
                                                             uint64_t subCommId, uint32_t subCommRankId,
                                                             HcclCommConfig* config, HcclComm* subComm) {
    const char* function = "HcclCreateSubCommConfig";
    if (comm == nullptr || subComm == nullptr) return refuse(HCCL_E_PTR, std::string(function) + ": comm is null.");
    const auto parent = find_comm(*comm, function);
    if (!parent) return HCCL_E_PTR;
    if (rankIds == nullptr && subCommId == 0xFFFFFFFF) {  // this rank takes no part
        *subComm = nullptr;
        return HCCL_SUCCESS;
    }
    if (rankIds == nullptr || rankNum == 0 || rankNum > parent->ranks() || subCommRankId >= rankNum ||
        rankIds[subCommRankId] != parent->rank())
        return refuse(HCCL_E_PARA, std::string(function) + ": rankIds must list " + std::to_string(rankNum) +
                                       " ranks of the parent, with this rank (" + std::to_string(parent->rank()) +
                                       ") at place " + std::to_string(subCommRankId) + ".");
    CommPlan plan;
    plan.meeting = sub_meeting(*parent, subCommId, rankIds, rankNum);
    plan.ranks = rankNum;
    plan.rank = subCommRankId;
    plan.device = parent->device();
    if (const HcclResult result = configure(config, &plan); result != HCCL_SUCCESS) return result;
    return guarded(function, [&] {
        if (subCommRankId == 0 && !start_root(plan.meeting, plan.timeouts.connect + kRootPatience))
            return refuse(HCCL_E_SYSCALL, std::string(function) + ": this sub-communicator's meeting point exists.");
        return make_comm(function, plan, subComm);
    });
}

extern "C" NPU_SIM_EXPORT HcclResult HcclCommDestroy(HcclComm comm) {
    const auto found = retract_comm(comm, "HcclCommDestroy");
    if (!found) return HCCL_E_PTR;
    found->close();
    return HCCL_SUCCESS;
}

extern "C" NPU_SIM_EXPORT HcclResult HcclGetCommName(HcclComm comm, char* commName) {
    const auto found = find_comm(comm, "HcclGetCommName");
    if (!found) return HCCL_E_PTR;
    if (commName == nullptr) return refuse(HCCL_E_PTR, "HcclGetCommName: commName is null.");
    commName[found->name().copy(commName, COMM_NAME_MAX_LENGTH - 1)] = '\0';
    return HCCL_SUCCESS;
}

extern "C" NPU_SIM_EXPORT HcclResult HcclGetRankSize(HcclComm comm, uint32_t* rankSize) {
    const auto found = find_comm(comm, "HcclGetRankSize");
    if (!found) return HCCL_E_PTR;
    if (rankSize == nullptr) return refuse(HCCL_E_PTR, "HcclGetRankSize: rankSize is null.");
    *rankSize = found->ranks();
    return HCCL_SUCCESS;
}

extern "C" NPU_SIM_EXPORT HcclResult HcclGetRankId(HcclComm comm, uint32_t* rank) {
    const auto found = find_comm(comm, "HcclGetRankId");
    if (!found) return HCCL_E_PTR;
    if (rank == nullptr) return refuse(HCCL_E_PTR, "HcclGetRankId: rank is null.");
    *rank = found->rank();
    return HCCL_SUCCESS;
}

extern "C" NPU_SIM_EXPORT HcclResult HcclGetCommAsyncError(HcclComm comm, HcclResult* asyncError) {
    const auto found = find_comm(comm, "HcclGetCommAsyncError");
    if (!found) return HCCL_E_PTR;
    if (asyncError == nullptr) return refuse(HCCL_E_PTR, "HcclGetCommAsyncError: asyncError is null.");
    *asyncError = found->error();
    return HCCL_SUCCESS;
}
