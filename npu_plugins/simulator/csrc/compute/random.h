// Random numbers of the NPU's generator for CPU kernels.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <mutex>

namespace npu_sim {

// A CPU generator for one kernel launch. Its seed is a function of the NPU generator's seed and offset, and the
// offset advances: the stream of numbers is repeatable, travels with get/set_rng_state, and is apart from the host's.
at::Generator generator_for_launch(const at::Generator& npu_or_none, c10::DeviceIndex device);

// The seed of a CPU generator for the numbers that belong to (seed, offset).
uint64_t host_seed(uint64_t seed, uint64_t offset);

// For kernels that draw without taking a generator (native_dropout): the host's default generator is lent out,
// reseeded, and put back as it was.
class LentDefaultGenerator {
  public:
    explicit LentDefaultGenerator(c10::DeviceIndex device);
    ~LentDefaultGenerator();
    LentDefaultGenerator(const LentDefaultGenerator&) = delete;
    LentDefaultGenerator& operator=(const LentDefaultGenerator&) = delete;

  private:
    std::unique_lock<std::mutex> lock_;
    at::Generator saved_;
};

}  // namespace npu_sim
