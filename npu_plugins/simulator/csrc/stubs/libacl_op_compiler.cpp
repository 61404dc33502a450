// libacl_op_compiler.so: in a CANN install, single-operator compilation (aclop*). libtorch_npu.so names this library as a dependency,
// so it must exist under this name; the functions torch_npu calls are in libascendcl.so (csrc/runtime).
namespace npu_sim {
extern const char kLibraryName[];
const char kLibraryName[] = "libacl_op_compiler";
}  // namespace npu_sim
