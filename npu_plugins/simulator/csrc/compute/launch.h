// What precedes a host kernel: the right device, and the work it depends on.
#pragma once

#include <c10/core/Device.h>

namespace npu_sim {

// A host kernel runs on the calling thread. It must see what torch_npu's task queue and the current stream were
// given before it, or it reads data that a collective or a copy has not written yet. Throws the stream's error.
void wait_for_earlier_work(c10::DeviceIndex device);

}  // namespace npu_sim
