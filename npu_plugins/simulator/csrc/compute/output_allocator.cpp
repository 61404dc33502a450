#include "compute/output_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "runtime/sim.h"
#include "torch_npu/csrc/core/npu/NPUCachingAllocator.h"

namespace npu_sim {
namespace {

thread_local bool outputs_on_npu = false;

c10::DeleterFnPtr host_raw_deleter = nullptr;  // of the allocator that was there before ours

// Every allocation of torch_npu's caching allocator carries this deleter.
c10::DeleterFnPtr npu_deleter() {
    static const c10::DeleterFnPtr deleter = npu_allocator().raw_deleter();
    return deleter;
}

// oneDNN takes and returns its scratch memory as raw pointers, so where one came from shows in its address only.
void free_raw(void* pointer) {
    HbmLocation location;
    const bool on_npu = locate(pointer, 1, &location);
    (on_npu ? npu_deleter() : host_raw_deleter)(pointer);
}

class OutputAllocator final : public c10::Allocator {
  public:
    explicit OutputAllocator(c10::Allocator* host) : host_(host) { host_raw_deleter = host->raw_deleter(); }

    c10::DataPtr allocate(size_t bytes) override {
        if (!outputs_on_npu || bytes == 0) return host_->allocate(bytes);
        auto memory = npu_allocator().allocate(bytes);
        const auto deleter = memory.get_deleter();
        void* pointer = memory.get();
        return {pointer, memory.release_context(), deleter, c10::Device(c10::kCPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &free_raw; }

    void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  private:
    c10::Allocator* host_;
};

}  // namespace

OutputsOnNpu::OutputsOnNpu() : before_(outputs_on_npu) { outputs_on_npu = true; }
OutputsOnNpu::~OutputsOnNpu() { outputs_on_npu = before_; }

void install_output_allocator() {
    // Leaked: tensors freed during shutdown still refer to it.
    static auto* allocator = new OutputAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(allocator, /*priority=*/1);
}

c10::Allocator& npu_allocator() { return *c10_npu::NPUCachingAllocator::get(); }

bool owned_by_npu(const c10::DataPtr& memory) { return memory.get_deleter() == npu_deleter(); }

c10::DataPtr to_npu(c10::DataPtr memory, c10::Device device) {
    const auto deleter = memory.get_deleter();
    void* pointer = memory.get();
    return {pointer, memory.release_context(), deleter, device};
}

}  // namespace npu_sim
