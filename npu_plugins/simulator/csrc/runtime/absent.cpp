// Functions torch_npu links against that the simulator does not offer: each refuses, naming itself.
#include <cstdarg>

#include "acl/acl.h"
#include "runtime/export.h"

using namespace npu_sim;

#define NPU_SIM_REFUSE(function, ...) \
    NPU_SIM_API aclError function(__VA_ARGS__) { return refuse(#function); }

// Operator dump, a debugging aid of the chip.
NPU_SIM_REFUSE(aclmdlInitDump)
NPU_SIM_REFUSE(aclmdlSetDump, const char*)
NPU_SIM_REFUSE(aclmdlFinalizeDump)

// Kernels compiled for the chip (Triton, TorchInductor, AscendC).
NPU_SIM_REFUSE(aclrtBinaryGetFunction, const aclrtBinHandle, const char*, aclrtFuncHandle*)
NPU_SIM_REFUSE(aclrtBinaryLoadFromData, const void*, size_t, const aclrtBinaryLoadOptions*, aclrtBinHandle*)
NPU_SIM_REFUSE(aclrtGetFunctionAddr, aclrtFuncHandle, void**, void**)
NPU_SIM_REFUSE(rtDevBinaryRegister, const void*, void**)
NPU_SIM_REFUSE(rtFunctionRegister, void*, const void*, const char*, const void*, uint32_t)
NPU_SIM_REFUSE(rtKernelLaunch, const void*, uint32_t, void*, uint32_t, void*, void*)
NPU_SIM_REFUSE(rtGetC2cCtrlAddr, uint64_t*, uint32_t*)

// Callbacks served by a thread of the application (graph capture).
NPU_SIM_REFUSE(aclrtProcessReport, int32_t)

// The log of CANN: torch_npu's own lines are wanted only when it is asked for them.
NPU_SIM_API void aclAppLog(aclLogLevel level, const char* function, const char* file, uint32_t line, const char* format,
                           ...) {
    const char* wanted = getenv("ASCEND_GLOBAL_LOG_LEVEL");
    const char* to_screen = getenv("ASCEND_SLOG_PRINT_TO_STDOUT");
    if (!wanted || !to_screen || to_screen[0] != '1' || level < atoi(wanted)) return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "[simulated CANN] %s (%s:%u) ", function, file, line);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

// Profiling hooks that torch_npu calls on every launch: with no profiler attached they are no-ops on a card too.
NPU_SIM_API uint64_t MsprofGetHashId(const char*, size_t) { return 0; }
NPU_SIM_API uint64_t MsprofSysCycleTime() { return 0; }
NPU_SIM_API int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
NPU_SIM_API int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
NPU_SIM_API int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
NPU_SIM_API int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
