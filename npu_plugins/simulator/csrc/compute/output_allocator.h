// Lets CPU kernels allocate their outputs in device memory, so that handing an output over costs no copy.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace npu_sim {

// Replaces the process's CPU allocator by one that forwards to the previous one, except while the calling thread is
// inside an OutputsOnNpu: then memory comes from torch_npu's caching allocator.
void install_output_allocator();

class OutputsOnNpu {
  public:
    OutputsOnNpu();
    ~OutputsOnNpu();
    OutputsOnNpu(const OutputsOnNpu&) = delete;
    OutputsOnNpu& operator=(const OutputsOnNpu&) = delete;

  private:
    bool before_;
};

c10::Allocator& npu_allocator();

// True if the memory belongs to torch_npu's caching allocator.
bool owned_by_npu(const c10::DataPtr& memory);

// The same memory, said to lie on `device`.
c10::DataPtr to_npu(c10::DataPtr memory, c10::Device device);

}  // namespace npu_sim
