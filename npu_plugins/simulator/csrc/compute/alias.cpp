#include "compute/alias.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "compute/output_allocator.h"
#include "torch_npu/csrc/core/NPUStorageImpl.h"

namespace npu_sim {
namespace {

// Flags that travel with a tensor and are not part of its geometry.
void copy_flags(const at::Tensor& from, const at::Tensor& to) {
    auto* target = to.unsafeGetTensorImpl();
    if (from.unsafeGetTensorImpl()->is_wrapped_number()) target->set_wrapped_number(true);
    if (from.is_conj()) target->_set_conj(true);
    if (from.is_neg()) target->_set_neg(true);
}

// torch_npu keeps its own description of a storage: the shape it was made with, in the plain format.
void describe(const at::Tensor& tensor) {
    auto* storage = static_cast<torch_npu::NPUStorageImpl*>(tensor.storage().unsafeGetStorageImpl());
    auto& description = storage->npu_desc_;
    description.base_sizes_.assign(tensor.sizes().begin(), tensor.sizes().end());
    description.base_strides_.assign(tensor.strides().begin(), tensor.strides().end());
    description.storage_sizes_ = description.base_sizes_;
    description.base_offset_ = 0;
    description.origin_format_ = tensor.dim() == 4 ? ACL_FORMAT_NCHW : ACL_FORMAT_ND;
    description.npu_format_ = description.origin_format_;
    description.data_type_ = tensor.dtype();
}

// Moves the memory of `host`'s storage into `target`'s, or copies it when it is not device memory.
void move_memory(c10::StorageImpl& host, c10::StorageImpl& target, c10::Device device) {
    const size_t bytes = host.nbytes();
    if (owned_by_npu(host.data_ptr())) {
        target.set_data_ptr_noswap(to_npu(host.set_data_ptr(c10::DataPtr(nullptr, c10::kCPU)), device));
    } else if (bytes > 0) {
        auto memory = npu_allocator().allocate(bytes);
        std::memcpy(memory.get(), host.data(), bytes);
        target.set_data_ptr_noswap(std::move(memory));
    }
    target.set_nbytes(bytes);
}

}  // namespace

at::Tensor host_alias(const at::Tensor& device) {
    const auto& source = device.storage();
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), source.nbytes(),
        c10::DataPtr(source.mutable_data(), c10::Device(c10::kCPU)), c10::GetCPUAllocator(), /*resizable=*/true);
    auto alias = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), device.dtype());
    auto* impl = alias.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(device.sizes(), device.strides(), device.storage_offset());
    copy_flags(device, alias);
    return alias;
}

at::Tensor adopt(at::Tensor host, c10::Device device) {
    if (!host.defined()) return host;
    TORCH_CHECK(host.layout() == c10::kStrided && !host.is_quantized(), "simulated NPU: a kernel returned a tensor of layout ",
                host.layout(), ", which is not simulated; use strided, unquantized tensors on the NPU.");
    auto tensor = at::empty({0}, host.options().device(device));
    if (owned_by_npu(host.storage().data_ptr()) && host.storage().use_count() > 1) {
        // Two outputs of one kernel share a storage: the second one is copied.
        host = host.clone();
    }
    move_memory(*host.storage().unsafeGetStorageImpl(), *tensor.storage().unsafeGetStorageImpl(), device);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    copy_flags(host, tensor);
    describe(tensor);
    return tensor;
}

void follow_resize(const at::Tensor& device, const at::Tensor& alias) {
    auto& own = *device.storage().unsafeGetStorageImpl();
    auto& host = *alias.storage().unsafeGetStorageImpl();
    const bool moved = host.data() != own.data();
    if (!moved && alias.sizes() == device.sizes() && alias.strides() == device.strides() &&
        alias.storage_offset() == device.storage_offset())
        return;
    if (moved) move_memory(host, own, device.device());
    device.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
    if (moved) describe(device);
}

}  // namespace npu_sim
