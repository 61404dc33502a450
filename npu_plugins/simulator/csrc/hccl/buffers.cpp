#include "hccl/buffers.h"

#include <cstdio>

namespace npu_sim::hccl {

Checks& Checks::that(bool holds, HcclResult otherwise, const std::string& why) {
    if (passed() && !holds) {
        result_ = otherwise;
        why_ = why;
    }
    return *this;
}

Checks& Checks::type(HcclDataType type) {
    return that(element_bytes(type) != 0, HCCL_E_NOT_SUPPORT,
                "data type " + std::to_string(static_cast<int>(type)) + " is none of HCCL's.");
}

uint64_t Checks::bytes_of(HcclDataType type, uint64_t count) {
    constexpr uint64_t kMost = 1ull << 40;  // leaves room for the product with the number of ranks
    that(count <= kMost, HCCL_E_PARA, "a count of " + std::to_string(count) + " elements is more than any memory holds.");
    return passed() ? count * element_bytes(type) : 0;
}

Checks& Checks::reduction(HcclDataType type, HcclReduceOp op) {
    return that(can_reduce(type, op), HCCL_E_NOT_SUPPORT,
                std::string("an Atlas A2 card does not reduce ") + type_name(type) + " with " + reduce_name(op) +
                    "; convert the tensor, e.g. to float32.");
}

Checks& Checks::peer(const char* role, uint32_t rank) {
    return that(rank < comm_.ranks(), HCCL_E_PARA,
                std::string(role) + " rank " + std::to_string(rank) + " is outside communicator '" + comm_.name() +
                    "' of " + std::to_string(comm_.ranks()) + " ranks.");
}

Checks& Checks::buffer(const char* role, const void* pointer, uint64_t bytes, uint64_t* offset) {
    if (!passed() || bytes == 0) return *this;
    that(pointer != nullptr, HCCL_E_PTR, std::string(role) + " is null.");
    HbmLocation place{};
    char text[32];
    snprintf(text, sizeof(text), "%p", pointer);
    const std::string what = std::string(role) + " " + text + " (" + std::to_string(bytes) + " bytes) ";
    that(locate(pointer, bytes, &place), HCCL_E_PARA, what + "is not device memory.");
    that(place.device == comm_.device(), HCCL_E_PARA,
         what + "is on device " + std::to_string(place.device) + ", but communicator '" + comm_.name() +
             "' is on device " + std::to_string(comm_.device()) + ".");
    *offset = place.offset;
    return *this;
}

}  // namespace npu_sim::hccl
