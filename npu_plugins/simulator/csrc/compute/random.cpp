#include "compute/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include "torch_npu/csrc/aten/NPUGeneratorImpl.h"

namespace npu_sim {
namespace {

// How far one launch moves the offset. torch_npu wants a multiple of 4; the size is free, since the numbers come from
// a generator seeded anew for each launch.
constexpr uint64_t kOffsetPerLaunch = 4;

// Finaliser of SplitMix64: neighbouring (seed, offset) pairs give unrelated seeds.
uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

uint64_t next_seed(const at::Generator& npu_or_none, c10::DeviceIndex device) {
    const at::Generator& npu =
        npu_or_none.defined() ? npu_or_none : at_npu::detail::getDefaultNPUGenerator(device);
    auto* generator = at::check_generator<at_npu::NPUGeneratorImpl>(npu);
    std::lock_guard<std::mutex> lock(generator->mutex_);
    const auto [seed, offset] = generator->philox_engine_inputs(kOffsetPerLaunch);
    return host_seed(seed, offset);
}

std::mutex& default_generator_mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
}

}  // namespace

uint64_t host_seed(uint64_t seed, uint64_t offset) { return mix(mix(seed) ^ offset); }

at::Generator generator_for_launch(const at::Generator& npu_or_none, c10::DeviceIndex device) {
    return at::detail::createCPUGenerator(next_seed(npu_or_none, device));
}

LentDefaultGenerator::LentDefaultGenerator(c10::DeviceIndex device) : lock_(default_generator_mutex()) {
    at::Generator host = at::detail::getDefaultCPUGenerator();
    const uint64_t seed = next_seed(at::Generator(), device);
    std::lock_guard<std::mutex> lock(host.mutex());
    saved_ = host.clone();
    host.set_current_seed(seed);
}

LentDefaultGenerator::~LentDefaultGenerator() {
    at::Generator host = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(host.mutex());
    host.set_state(saved_.get_state());
}

}  // namespace npu_sim
