// Matrix products of groups of rows, one weight a group: the experts of a mixture of experts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include "compute/fused/math.h"
#include "compute/opapi/operator.h"

namespace npu_sim {
namespace {

using at::Tensor;

enum GroupType : int64_t { kNone = -1, kRows = 0, kInner = 2 };  // the axis that the group list divides

// Ends of the groups, from cumulative lengths (type 0) or lengths (type 1).
Ints group_ends(const Tensor& list, int64_t type) {
    TORCH_CHECK(type == 0 || type == 1, "group_list_type ", type, " is not simulated");
    const Tensor ends = type == 0 ? list.to(at::kLong) : list.to(at::kLong).cumsum(0);
    const auto* values = ends.contiguous().const_data_ptr<int64_t>();
    return {values, values + ends.numel()};
}

struct Groups {
    Tensors x, weight, bias, out;
    Ints ends;
    int64_t type = kRows;

    size_t count() const { return x.size() > 1 ? x.size() : (type == kNone || ends.empty() ? weight.size() : ends.size()); }
    int64_t begin(size_t i) const { return i == 0 ? 0 : ends[i - 1]; }
    int64_t length(size_t i) const { return ends[i] - begin(i); }

    Tensor x_of(size_t i) const {
        if (x.size() > 1 || type == kNone) return x[x.size() > 1 ? i : 0];
        return x[0].narrow(type == kInner ? 1 : 0, begin(i), length(i));
    }
    Tensor weight_of(size_t i) const {
        if (weight.size() > 1) return weight[i];
        if (type == kInner) return weight[0].narrow(0, begin(i), length(i));
        return weight[0].dim() == 3 ? weight[0][static_cast<int64_t>(i)] : weight[0];
    }
    Tensor bias_of(size_t i) const {
        if (bias.empty() || !bias[0].defined() || bias[0].numel() == 0) return {};
        return bias.size() > 1 ? bias[i] : (bias[0].dim() == 2 ? bias[0][static_cast<int64_t>(i)] : bias[0]);
    }
    Tensor out_of(size_t i) const {
        if (out.size() > 1) return out[i];
        if (type == kInner) return out[0].view({static_cast<int64_t>(count()), -1, out[0].size(-1)})[static_cast<int64_t>(i)];
        return type == kNone && ends.empty() ? out[0] : out[0].narrow(0, begin(i), length(i));
    }
};

// Several inputs into one output: their own lengths are the groups.
void fill_ends(Groups& groups) {
    if (!groups.ends.empty() || groups.x.size() == 1) return;
    int64_t end = 0;
    for (const Tensor& x : groups.x) groups.ends.push_back(end += x.size(0));
}

void multiply(Groups groups) {
    fill_ends(groups);
    for (size_t i = 0; i < groups.count(); ++i) {
        Tensor product = at::matmul(wide(groups.x_of(i)), wide(groups.weight_of(i)));
        if (const Tensor bias = groups.bias_of(i); bias.defined()) product = product + wide(bias);
        groups.out_of(i).copy_(product);
    }
}

void refuse_quantised(std::initializer_list<const aclTensorList*> lists) {
    for (const auto* list : lists)
        for (const Tensor& tensor : take(list))
            TORCH_CHECK(!tensor.defined() || tensor.numel() == 0, "quantised operands are not simulated");
}

struct GroupedMatmulHandles {
    const aclTensorList *x, *weight, *bias, *out;
    const aclTensor* group_list;
    int64_t group_type, group_list_type, activation;
};

aclError prepare_grouped(const char* name, const GroupedMatmulHandles& h,
                         std::initializer_list<const aclTensorList*> quantisation, uint64_t* workspace,
                         aclOpExecutor** executor) {
    const auto make = [&]() -> std::function<void()> {
        refuse_quantised(quantisation);
        TORCH_CHECK(h.activation == 0, "act_type ", h.activation, " is not simulated");
        TORCH_CHECK(h.group_type == kNone || h.group_type == kRows || h.group_type == kInner, "group_type ",
                    h.group_type, " is not simulated");
        return [groups = Groups{take(h.x), take(h.weight), take(h.bias), take(h.out), {}, h.group_type},
                list = take(h.group_list), type = h.group_list_type]() mutable {
            if (list.defined() && list.numel() > 0) groups.ends = group_ends(list, type);
            multiply(groups);
        };
    };
    return prepare_executor(name, make, workspace, executor);
}

void first_version(const Tensors& x, const Tensors& weight, const Tensors& bias, const Ints& ends, const Tensors& out) {
    multiply({x, weight, bias, out, ends, ends.empty() && x.size() == weight.size() ? kNone : kRows});
}

// The gradient of the weights: out[group] += x[group]^T weight[group].
void add_products(const Tensor& x, const Tensor& weight, const Tensor& list, const Tensor& out, bool transpose_x,
                  bool transpose_weight, int64_t type) {
    TORCH_CHECK(transpose_x && !transpose_weight && type == kInner,
                "only transpose_x=True, transpose_weight=False, group_type=2 are supported");
    const Groups groups{{x.t()}, {weight}, {}, {out}, group_ends(list, 0), kInner};
    for (size_t i = 0; i < groups.count(); ++i)
        groups.out_of(i).add_(at::matmul(wide(groups.x_of(i)), wide(groups.weight_of(i))).to(out.scalar_type()));
}

}  // namespace

NPU_SIM_API int aclnnGroupedMatmulV4GetWorkspaceSize(
    const aclTensorList* x, const aclTensorList* weight, const aclTensorList* bias, const aclTensorList* scale,
    const aclTensorList* offset, const aclTensorList* antiquant_scale, const aclTensorList* antiquant_offset,
    const aclTensorList* per_token_scale, const aclTensor* group_list, const aclTensorList*, const aclTensorList*,
    const aclTensorList*, int64_t, int64_t group_type, int64_t group_list_type, int64_t activation,
    const aclTensorList* out, const aclTensorList*, const aclTensorList*, uint64_t* workspace,
    aclOpExecutor** executor) {
    return prepare_grouped("aclnnGroupedMatmulV4",
                           {x, weight, bias, out, group_list, group_type, group_list_type, activation},
                           {scale, offset, antiquant_scale, antiquant_offset, per_token_scale}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnGroupedMatmulV4)

NPU_SIM_API int aclnnGroupedMatmulV5GetWorkspaceSize(
    const aclTensorList* x, const aclTensorList* weight, const aclTensorList* bias, const aclTensorList* scale,
    const aclTensorList* offset, const aclTensorList* antiquant_scale, const aclTensorList* antiquant_offset,
    const aclTensorList* per_token_scale, const aclTensor* group_list, const aclTensorList*, const aclTensorList*,
    const aclTensorList*, int64_t, int64_t group_type, int64_t group_list_type, int64_t activation, const aclIntArray*,
    const aclTensorList* out, const aclTensorList*, const aclTensorList*, uint64_t* workspace,
    aclOpExecutor** executor) {
    return prepare_grouped("aclnnGroupedMatmulV5",
                           {x, weight, bias, out, group_list, group_type, group_list_type, activation},
                           {scale, offset, antiquant_scale, antiquant_offset, per_token_scale}, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnGroupedMatmulV5)

NPU_SIM_API int aclnnGroupedMatmulGetWorkspaceSize(
    const aclTensorList* x, const aclTensorList* weight, const aclTensorList* bias, const aclTensorList* scale,
    const aclTensorList* offset, const aclTensorList* antiquant_scale, const aclTensorList* antiquant_offset,
    const aclIntArray* group_list, int64_t, const aclTensorList* out, uint64_t* workspace, aclOpExecutor** executor) {
    const auto make = [&]() -> std::function<void()> {
        refuse_quantised({scale, offset, antiquant_scale, antiquant_offset});
        return [x = take(x), weight = take(weight), bias = take(bias), ends = take(group_list), out = take(out)] {
            first_version(x, weight, bias, ends, out);
        };
    };
    return prepare_executor("aclnnGroupedMatmul", make, workspace, executor);
}
NPU_SIM_LAUNCH(aclnnGroupedMatmul)

NPU_SIM_ACLNN(aclnnGroupedMatmulAdd,
              (const aclTensor* x, const aclTensor* weight, const aclTensor* group_list, const aclTensor* out,
               bool transpose_x, bool transpose_weight, int64_t group_type),
              add_products, x, weight, group_list, out, transpose_x, transpose_weight, group_type)

}  // namespace npu_sim
