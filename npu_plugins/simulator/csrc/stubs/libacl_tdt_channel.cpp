// libacl_tdt_channel.so: in a CANN install, tensor data transfer channels. libtorch_npu.so names this library as a dependency,
// so it must exist under this name; the functions torch_npu calls are in libascendcl.so (csrc/runtime).
namespace npu_sim {
extern const char kLibraryName[];
const char kLibraryName[] = "libacl_tdt_channel";
}  // namespace npu_sim
