#include "compute/opapi/handles.h"

#include <ATen/ops/from_blob.h>

#include "compute/opapi/dtype.h"
#include "runtime/export.h"

namespace npu_sim {

at::Tensor host_view(void* memory, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                     at::ScalarType dtype) {
    auto* first = static_cast<char*>(memory) + offset * static_cast<int64_t>(c10::elementSize(dtype));
    return at::from_blob(first, sizes, strides, at::TensorOptions().dtype(dtype).device(at::kCPU));
}

namespace {

template <class T>
c10::Scalar read(const void* value) {
    return c10::Scalar(*static_cast<const T*>(value));
}

c10::Scalar read_scalar(const void* value, aclDataType dtype) {
    switch (torch_dtype(dtype)) {
        case at::kFloat: return read<float>(value);
        case at::kDouble: return read<double>(value);
        case at::kHalf: return read<at::Half>(value);
        case at::kBFloat16: return read<at::BFloat16>(value);
        case at::kLong: return read<int64_t>(value);
        case at::kInt: return read<int32_t>(value);
        case at::kShort: return read<int16_t>(value);
        case at::kChar: return read<int8_t>(value);
        case at::kByte: return read<uint8_t>(value);
        case at::kBool: return read<bool>(value);
        case at::kComplexFloat: return read<c10::complex<float>>(value);
        case at::kComplexDouble: return read<c10::complex<double>>(value);
        default: TORCH_CHECK(false, "scalars of ACL data type ", static_cast<int>(dtype), " are not simulated");
    }
}

}  // namespace
}  // namespace npu_sim

using namespace npu_sim;

NPU_SIM_API aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t rank, aclDataType dtype, const int64_t* strides,
                                       int64_t offset, aclFormat, const int64_t*, uint64_t, void* memory) {
    auto* tensor = new aclTensor;
    try {
        tensor->host = host_view(memory, {sizes, rank}, {strides, rank}, offset, torch_dtype(dtype));
    } catch (const c10::Error& unsupported) {
        tensor->problem = unsupported.msg();
    }
    return tensor;
}

NPU_SIM_API aclScalar* aclCreateScalar(void* value, aclDataType dtype) {
    try {
        return new aclScalar{read_scalar(value, dtype)};
    } catch (const c10::Error& unsupported) {
        fail(ACL_ERROR_INVALID_PARAM, unsupported.msg());
        return nullptr;
    }
}

NPU_SIM_API aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
    return new aclIntArray{{values, values + count}};
}
NPU_SIM_API aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
    return new aclFloatArray{{values, values + count}};
}
NPU_SIM_API aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
    return new aclBoolArray{{values, values + count}};
}
NPU_SIM_API aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t count) {
    return new aclTensorList{{tensors, tensors + count}};
}
NPU_SIM_API aclScalarList* aclCreateScalarList(const aclScalar* const* scalars, uint64_t count) {
    return new aclScalarList{{scalars, scalars + count}};
}

NPU_SIM_API int aclDestroyTensor(const aclTensor* tensor) {
    delete tensor;
    return 0;
}
NPU_SIM_API int aclDestroyScalar(const aclScalar* scalar) {
    delete scalar;
    return 0;
}
NPU_SIM_API int aclDestroyIntArray(const aclIntArray* array) {
    delete array;
    return 0;
}
NPU_SIM_API int aclDestroyFloatArray(const aclFloatArray* array) {
    delete array;
    return 0;
}
NPU_SIM_API int aclDestroyBoolArray(const aclBoolArray* array) {
    delete array;
    return 0;
}
NPU_SIM_API int aclDestroyTensorList(const aclTensorList* list) {
    for (const auto* tensor : list->tensors) delete tensor;
    delete list;
    return 0;
}
NPU_SIM_API int aclDestroyScalarList(const aclScalarList* list) {
    for (const auto* scalar : list->scalars) delete scalar;
    delete list;
    return 0;
}
