// libhcomm.so: in a CANN install, the part of HCCL that groups calls. torch_npu opens it by this name for
// HcclGroupStart and HcclGroupEnd, and finds them in libhccl.so (csrc/hccl), which it is linked with.
namespace npu_sim {
extern const char kLibraryName[];
const char kLibraryName[] = "libhcomm";
}  // namespace npu_sim
