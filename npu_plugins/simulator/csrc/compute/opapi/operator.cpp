#include "compute/opapi/operator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <memory>

namespace npu_sim {
namespace {

// CANN's codes: arguments refused by an aclnn function, and an exception inside a running kernel.
constexpr aclError kParameterInvalid = 161002;
constexpr aclError kKernelFailed = 507015;

aclError run(const std::string& name, const std::function<void()>& work) {
    at::NoGradGuard no_grad;
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    try {
        work();
        return ACL_SUCCESS;
    } catch (const c10::Error& failure) {
        return fail(kKernelFailed, name + ": " + failure.msg());
    } catch (const std::exception& failure) {
        return fail(kKernelFailed, name + ": " + failure.what());
    }
}

}  // namespace

aclError launch(const char* name, std::function<void()> work, aclrtStream stream) {
    return enqueue(stream, [name = std::string(name), work = std::move(work)] { return run(name, work); });
}

aclError prepare_executor(const char* name, const std::function<std::function<void()>()>& make, uint64_t* workspace,
                          aclOpExecutor** executor) {
    try {
        *executor = new aclOpExecutor{name, make()};
        *workspace = 0;
        return ACL_SUCCESS;
    } catch (const c10::Error& refused) {
        return fail(kParameterInvalid, std::string(name) + ": " + refused.msg());
    } catch (const std::exception& refused) {
        return fail(kParameterInvalid, std::string(name) + ": " + refused.what());
    }
}

aclError launch_executor(aclOpExecutor* executor, aclrtStream stream) {
    const std::unique_ptr<aclOpExecutor> owned(executor);
    return launch(owned->name, std::move(owned->work), stream);
}

at::Tensor take(const aclTensor* tensor) {
    if (!tensor) return {};
    TORCH_CHECK(tensor->host.defined(), tensor->problem);
    return tensor->host;
}

Tensors take(const aclTensorList* list) {
    Tensors tensors;
    if (list)
        for (const auto* tensor : list->tensors) tensors.push_back(take(tensor));
    return tensors;
}

}  // namespace npu_sim
