// Puts host kernels over torch_npu's for every operator a training run can reach.
//
// torch_npu's kernels prepare arguments and call aclnn functions of CANN. About a thousand aten operators have a CPU
// kernel of equal meaning; those are run instead, on the same memory. What has none keeps torch_npu's kernel, which
// ends in the simulated runtime and fails there, naming the function it wanted.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <unordered_set>

#include "compute/copy_kernel.h"
#include "compute/fused/recurrent.h"
#include "compute/host_kernel.h"
#include "compute/integer_division.h"
#include "compute/output_allocator.h"
#include "runtime/export.h"

namespace npu_sim {

void register_op_runner();

namespace {

using c10::DispatchKey;

// torch_npu's own: they make or move storages and only need the runtime.
const std::unordered_set<std::string>& kept() {
    static const std::unordered_set<std::string> names = {
        "aten::_efficientzerotensor",
        "aten::empty",        "aten::empty_strided", "aten::empty_like",     "aten::new_empty",
        "aten::new_empty_strided", "aten::resize_",  "aten::resize_as_",     "aten::set_",
        "aten::_local_scalar_dense", "aten::record_stream", "aten::is_pinned", "aten::_pin_memory",
        "aten::pin_memory",   "aten::_has_compatible_shallow_copy_type", "aten::is_set_to",
        // Attention in one kernel, whose memory does not grow with the square of the sequence.
        "aten::scaled_dot_product_attention", "aten::_fused_sdp_choice"};
    return names;
}

bool is_view(const c10::FunctionSchema& schema) {
    for (const auto& result : schema.returns())
        if (result.alias_info() && !result.alias_info()->isWrite()) return true;
    return false;
}

bool takes_device(const c10::FunctionSchema& schema) {
    for (const auto& argument : schema.arguments())
        if (argument.type()->str().find("Device") != std::string::npos) return true;
    return false;
}

bool has_composite(const c10::OperatorHandle& op, DispatchKey key) { return op.hasKernelForDispatchKey(key); }

// Leaked: registrations last as long as the process.
torch::Library& library(DispatchKey key) {
    static auto* backend = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
    static auto* autograd =
        new torch::Library(torch::Library::IMPL, "aten", DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
    return key == DispatchKey::PrivateUse1 ? *backend : *autograd;
}

template <class Kernel, class... Args>
void put(DispatchKey key, const c10::OperatorName& name, Args&&... args) {
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library(key).impl(full.c_str(),
                      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::forward<Args>(args)...)));
}

void register_backend(const c10::OperatorHandle& op) {
    const auto& schema = op.schema();
    const bool by_torch_npu = op.hasKernelForDispatchKey(DispatchKey::PrivateUse1);
    // A composite operator differentiates through its parts; a backend kernel would cut that. Neither torch_npu nor
    // the card has one here, only the CPU does (torch_npu puts one there for true_divide).
    if (!by_torch_npu && has_composite(op, DispatchKey::CompositeImplicitAutograd)) return;
    if (schema.name() == "aten::copy_" && schema.overload_name().empty()) {
        put<CopyKernel>(DispatchKey::PrivateUse1, op.operator_name(), op);
        return;
    }
    if (op.hasKernelForDispatchKey(DispatchKey::CPU)) {
        put<HostKernel>(DispatchKey::PrivateUse1, op.operator_name(), op);
        return;
    }
    if (!by_torch_npu) return;  // composite already, in terms of operators that come here
    const bool implicit = has_composite(op, DispatchKey::CompositeImplicitAutograd);
    const bool explicit_ = has_composite(op, DispatchKey::CompositeExplicitAutograd) ||
                           has_composite(op, DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (implicit || (explicit_ && takes_device(schema)))
        put<CompositeKernel>(DispatchKey::PrivateUse1, op.operator_name(), DispatchKey::CPU);
    else if (explicit_)
        put<HostKernel>(DispatchKey::PrivateUse1, op.operator_name(), op);
}

void register_aten() {
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
        if (name.name.rfind("aten::", 0) != 0 || kept().count(name.name)) continue;
        const auto op = c10::Dispatcher::singleton().findSchema(name);
        if (!op || is_view(op->schema())) continue;
        if (op->hasKernelForDispatchKey(DispatchKey::AutogradPrivateUse1))
            put<CompositeKernel>(DispatchKey::AutogradPrivateUse1, name, DispatchKey::AutogradCPU);
        register_backend(*op);
    }
}

// Replacing a kernel makes the dispatcher warn; here that is the purpose.
class QuietHandler final : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
};

}  // namespace
}  // namespace npu_sim

// Called once, after torch_npu was imported. Returns 0, or 1 with a message on stderr.
NPU_SIM_API int npu_sim_register() {
    try {
        npu_sim::QuietHandler quiet;
        c10::WarningUtils::WarningHandlerGuard guard(&quiet);
        npu_sim::install_output_allocator();
        npu_sim::register_aten();
        npu_sim::register_integer_division();
        npu_sim::register_recurrent_cells();
        npu_sim::register_op_runner();
        return 0;
    } catch (const std::exception& failure) {
        fprintf(stderr, "npu-plugins: the simulated kernels could not be registered: %s\n", failure.what());
        return 1;
    }
}
