#include "compute/launch.h"

#include <c10/util/Exception.h>

#include "acl/acl.h"
#include "runtime/sim.h"
#include "torch_npu/csrc/core/npu/NPUStream.h"

namespace npu_sim {

void wait_for_earlier_work(c10::DeviceIndex device) {
    // stream() empties torch_npu's task queue into the stream.
    aclrtStream stream = c10_npu::getCurrentNPUStream(device).stream();
    if (is_idle(stream)) return;
    const aclError failed = drain(stream);
    if (failed == ACL_SUCCESS) return;
    const char* message = aclGetRecentErrMsg();
    TORCH_CHECK(false, "NPU error, error code is ", failed, ": an earlier task of the current stream failed. ",
                message ? message : "");
}

}  // namespace npu_sim
