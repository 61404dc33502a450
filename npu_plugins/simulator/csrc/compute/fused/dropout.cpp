#include "compute/fused/dropout.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "compute/fused/math.h"
#include "compute/opapi/operator.h"
#include "compute/random.h"

namespace npu_sim {

using at::Tensor;

void generate_bits(const Tensor& bits, double keep, uint64_t seed, uint64_t offset) {
    const auto generator = at::detail::createCPUGenerator(host_seed(seed, offset));
    const Tensor drawn = at::empty({bits.numel(), 8}, at::kByte).bernoulli_(keep, generator);
    const Tensor weights = at::arange(8, at::kByte);
    put(bits, drawn.bitwise_left_shift(weights).sum(1, /*keepdim=*/false, at::kByte));
}

Tensor unpack_bits(const Tensor& bits, int64_t first, int64_t count) {
    const int64_t begin = first / 8, end = (first + count + 7) / 8;
    TORCH_CHECK(end <= bits.numel(), "the dropout mask has ", bits.numel() * 8, " bits, but ", first + count,
                " are needed");
    const Tensor bytes = bits.flatten().narrow(0, begin, end - begin).unsqueeze(1);
    const Tensor spread = bytes.bitwise_right_shift(at::arange(8, at::kByte)).bitwise_and(1);
    return spread.flatten().narrow(0, first - begin * 8, count);
}

namespace {

void generate(const Ints&, double drop, uint64_t seed, uint64_t offset, aclDataType, const Tensor& bits) {
    generate_bits(bits, 1 - drop, seed, offset);
}

void generate_first_version(const Ints& shape, double drop, uint64_t seed, uint64_t offset, const Tensor& bits) {
    generate(shape, drop, seed, offset, ACL_FLOAT, bits);
}

void apply(const Tensor& x, const Tensor& bits, double drop, const Tensor& out) {
    const Tensor kept = unpack_bits(bits, 0, x.numel()).view(x.sizes());
    put(out, drop == 1 ? wide(x) * 0 : wide(x) * kept / (1 - drop));
}

}  // namespace

NPU_SIM_ACLNN(aclnnDropoutGenMaskV2,
              (const aclIntArray* shape, double drop, uint64_t seed, uint64_t offset, aclDataType dtype,
               const aclTensor* bits),
              generate, shape, drop, seed, offset, dtype, bits)
NPU_SIM_ACLNN(aclnnDropoutGenMask,
              (const aclIntArray* shape, double drop, uint64_t seed, uint64_t offset, const aclTensor* bits),
              generate_first_version, shape, drop, seed, offset, bits)
NPU_SIM_ACLNN(aclnnDropoutDoMask, (const aclTensor* x, const aclTensor* bits, double drop, const aclTensor* out), apply,
              x, bits, drop, out)

}  // namespace npu_sim
