// Runs the few operators that torch_npu launches by type name from inside its own C++.
#include <ATen/ops/from_blob.h>

#include "acl/acl.h"
#include "runtime/export.h"
#include "runtime/op.h"

namespace npu_sim {
namespace {

aclError run_op(const OpCall& call) { return refuse(("operator " + call.type + " (aclopCompileAndExecute)").c_str()); }

}  // namespace

void register_op_runner() { set_op_runner(run_op); }

}  // namespace npu_sim
