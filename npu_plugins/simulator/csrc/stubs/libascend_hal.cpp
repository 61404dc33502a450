// libascend_hal.so: in an Ascend installation, the driver's interface. torch.npu.device_count() asks it how many NPUs
// the machine has, and reads ASCEND_RT_VISIBLE_DEVICES itself, so that counting does not settle what is visible.
#include <cstdint>

#include "runtime/export.h"
#include "runtime/sim.h"

NPU_SIM_API int drvGetDevNum(uint32_t* count) {
    *count = static_cast<uint32_t>(npu_sim::physical_device_count());
    return 0;
}
