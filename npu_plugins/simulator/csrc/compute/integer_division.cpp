// In-place true division of an integer tensor: the 910B computes it and drops the fraction, where PyTorch's CPU kernel
// refuses. HCCL's average of integers rests on it: torch_npu sums and then divides in place.
#include "compute/integer_division.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/div.h>
#include <torch/library.h>

namespace npu_sim {
namespace {

at::Tensor& divide_in_place(at::Tensor& self, const at::Tensor& other) {
    if (c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return self.copy_(at::div(self, other));
    return at::div_out(self, self, other);
}

at::Tensor& divide_in_place_by_scalar(at::Tensor& self, const at::Scalar& other) {
    return divide_in_place(self, at::native::wrapped_scalar_tensor(other));
}

}  // namespace

void register_integer_division() {
    // Leaked: registrations last as long as the process.
    static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    library->impl("div_.Tensor", divide_in_place);
    library->impl("div_.Scalar", divide_in_place_by_scalar);
}

}  // namespace npu_sim
