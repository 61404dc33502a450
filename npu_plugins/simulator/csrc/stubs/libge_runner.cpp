// libge_runner.so: in a CANN install, the graph engine. libtorch_npu.so names this library as a dependency,
// so it must exist under this name; the functions torch_npu calls are in libascendcl.so (csrc/runtime).
namespace npu_sim {
extern const char kLibraryName[];
const char kLibraryName[] = "libge_runner";
}  // namespace npu_sim
