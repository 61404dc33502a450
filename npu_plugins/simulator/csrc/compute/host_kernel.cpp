#include "compute/host_kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <optional>
#include <string_view>

#include "compute/alias.h"
#include "compute/launch.h"
#include "compute/output_allocator.h"
#include "compute/random.h"
#include "torch_npu/csrc/core/npu/NPURecovery.h"

namespace npu_sim {
namespace {

// Operators that on a card, too, take CPU tensors beside NPU ones: copies, and indices that may lie on the host.
constexpr std::array<std::string_view, 14> kTakesHostTensors = {
    "aten::copy_",      "aten::copy",           "aten::_copy_from",        "aten::_copy_from_and_resize",
    "aten::index",      "aten::index_put",      "aten::index_put_",        "aten::_index_put_impl_",
    "aten::_index_put_impl", "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_pack_padded_sequence",
    "aten::set_",       "aten::_ctc_loss"};

constexpr const char* kOneDevice = "Expected all tensors to be on the same device.";  // torch_npu's words

bool takes_host_tensors(const std::string& name) {
    for (const auto known : kTakesHostTensors)
        if (name == known) return true;
    return false;
}

bool is_list_of_tensors(const c10::IValue& value) {
    if (value.isTensorList()) return true;
    if (!value.isList()) return false;
    const auto& element = value.toListRef();
    return !element.empty() && (element[0].isTensor() || element[0].isNone());
}

}  // namespace

// One device tensor of the call and its alias.
struct Aliased {
    at::Tensor device;
    at::Tensor host;
    bool written;
};

struct HostKernel::Call {
    const c10::OperatorHandle& op;
    c10::SmallVector<Aliased, 6> aliased;
    c10::SmallVector<c10::IValue, 2> mutated;  // original values of the arguments that are returned
    c10::SmallVector<int, 2> mutated_index;
    std::optional<c10::Device> device;
    std::optional<c10::Device> other_device;  // a copy between two NPUs depends on both
    const bool refuses_unsafe;                // memory that a failure of the NPU spoilt, see torch_npu.npu._recovery

    at::Tensor alias(const at::Tensor& tensor, bool written, bool host_allowed) {
        if (!tensor.defined()) return tensor;
        if (tensor.device().type() != c10::DeviceType::PrivateUse1) {
            TORCH_CHECK(host_allowed || tensor.dim() == 0 || tensor.device().type() == c10::kMeta,
                        kOneDevice, " Expected NPU tensor, please check whether the input tensor device is correct: ",
                        op.schema().name(), " got one on ", tensor.device(),
                        " beside tensors on the NPU; move it with .to(\"npu\").");
            return tensor;
        }
        if (!device) device = tensor.device();
        if (tensor.device() != *device) other_device = tensor.device();
        TORCH_CHECK(host_allowed || tensor.device() == *device,
                    kOneDevice, " ", op.schema().name(), " got tensors on ", *device, " and ", tensor.device(), ".");
        TORCH_CHECK(tensor.layout() == c10::kStrided && tensor.has_storage(), op.schema().name(),
                    " of a tensor with layout ", tensor.layout(), " is not simulated; use a strided tensor on the NPU.");
        if (refuses_unsafe) c10_npu::check_npu_tensor_is_safe(tensor);
        aliased.push_back({tensor, host_alias(tensor), written});
        return aliased.back().host;
    }

    c10::IValue alias_list(const c10::IValue& value, bool written, bool host_allowed) {
        if (value.isTensorList()) {
            c10::List<at::Tensor> result;
            const auto& tensors = value.toTensorList();
            result.reserve(tensors.size());
            for (const at::Tensor tensor : tensors) result.push_back(alias(tensor, written, host_allowed));
            return result;
        }
        c10::List<std::optional<at::Tensor>> result;
        for (const auto& element : value.toListRef())
            result.push_back(element.isNone() ? std::nullopt
                                              : std::optional(alias(element.toTensor(), written, host_allowed)));
        return result;
    }

    // A fresh output, or a view of an argument if the kernel returned one.
    at::Tensor unalias(const at::Tensor& host) {
        if (!host.defined() || !host.has_storage()) return host;
        for (const auto& pair : aliased) {
            if (host.unsafeGetTensorImpl() == pair.host.unsafeGetTensorImpl()) return pair.device;
            if (host.storage().unsafeGetStorageImpl() == pair.host.storage().unsafeGetStorageImpl())
                return pair.device.as_strided(host.sizes(), host.strides(), host.storage_offset());
        }
        return adopt(host, *device);
    }
};

HostKernel::HostKernel(const c10::OperatorHandle& op) {
    const auto& schema = op.schema();
    argument_count_ = schema.arguments().size();
    takes_host_tensors_ = takes_host_tensors(schema.name());
    may_refuse_unsafe_ = schema.name() != "aten::copy_";  // its kernel makes the target safe
    for (size_t i = 0; i < argument_count_; ++i) {
        const auto& argument = schema.arguments()[i];
        is_written_.push_back(argument.alias_info() && argument.alias_info()->isWrite());
        const auto type = argument.type()->str();
        if (type.find("Generator") != std::string::npos) generator_argument_ = static_cast<int>(i);
        if (type.find("Device") != std::string::npos) device_argument_ = static_cast<int>(i);
    }
    for (const auto& result : schema.returns()) {
        int index = -1;
        for (size_t i = 0; result.alias_info() && i < argument_count_; ++i)
            if (is_written_[i] && *schema.arguments()[i].alias_info() == *result.alias_info()) index = static_cast<int>(i);
        returns_argument_.push_back(index);
    }
    draws_ = generator_argument_ >= 0 || op.hasTag(at::Tag::nondeterministic_seeded);
}

void HostKernel::to_host(Call& call, torch::jit::Stack* stack) const {
    const size_t begin = stack->size() - argument_count_;
    for (size_t i = 0; i < argument_count_; ++i) {
        c10::IValue& value = (*stack)[begin + i];
        const bool written = is_written_[i];
        const bool host_allowed = takes_host_tensors_;
        if (written) {
            call.mutated.push_back(value);
            call.mutated_index.push_back(static_cast<int>(i));
        }
        if (value.isTensor())
            value = call.alias(value.toTensor(), written, host_allowed);
        else if (is_list_of_tensors(value))
            value = call.alias_list(value, written, host_allowed);
    }
    if (device_argument_ >= 0) {
        c10::IValue& value = (*stack)[begin + static_cast<size_t>(device_argument_)];
        if (value.isDevice() && value.toDevice().type() == c10::DeviceType::PrivateUse1) {
            if (!call.device) call.device = value.toDevice();
            value = c10::Device(c10::kCPU);
        }
    }
    if (!call.device) call.device = c10::Device(c10::DeviceType::PrivateUse1);
    if (!call.device->has_index())
        call.device = c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getDevice();
}

void HostKernel::draw_from_npu(Call& call, torch::jit::Stack* stack) const {
    if (generator_argument_ < 0) return;
    c10::IValue& value = (*stack)[stack->size() - argument_count_ + static_cast<size_t>(generator_argument_)];
    value = generator_for_launch(value.isNone() ? at::Generator() : value.toGenerator(), call.device->index());
}

void HostKernel::from_host(Call& call, torch::jit::Stack* stack) const {
    for (const auto& pair : call.aliased)
        if (pair.written) follow_resize(pair.device, pair.host);
    const size_t begin = stack->size() - returns_argument_.size();
    for (size_t i = 0; i < returns_argument_.size(); ++i) {
        c10::IValue& value = (*stack)[begin + i];
        if (returns_argument_[i] >= 0) {
            for (size_t k = 0; k < call.mutated.size(); ++k)
                if (call.mutated_index[k] == returns_argument_[i]) value = call.mutated[k];
        } else if (value.isTensor()) {
            at::Tensor host = std::move(value).toTensor();
            value = call.unalias(host);
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> result;
            for (const at::Tensor tensor : value.toTensorList()) result.push_back(call.unalias(tensor));
            value = result;
        }
    }
}

void HostKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Call call{op, {}, {}, {}, std::nullopt, std::nullopt, may_refuse_unsafe_ && c10_npu::get_npu_data_unsafe_flag()};
    to_host(call, stack);
    c10::DeviceGuard device_guard(*call.device);
    wait_for_earlier_work(call.device->index());
    if (call.other_device) wait_for_earlier_work(call.other_device->index());
    {
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        OutputsOnNpu outputs_on_npu;
        std::optional<LentDefaultGenerator> lent;
        if (generator_argument_ >= 0)
            draw_from_npu(call, stack);
        else if (draws_)
            lent.emplace(call.device->index());
        constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
        op.redispatchBoxed(cpu, stack);
    }
    from_host(call, stack);
}

}  // namespace npu_sim
