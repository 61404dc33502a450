#include "compute/fused/recurrent.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace npu_sim {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using std::make_tuple;

// The four or three gates side by side, with their bias.
Tensor with_bias(const Tensor& gates, const MaybeTensor& bias) {
    return bias && bias->defined() ? gates + *bias : gates;
}

Tensor slope_of_sigmoid(const Tensor& value) { return value * (1 - value); }
Tensor slope_of_tanh(const Tensor& value) { return 1 - value * value; }

// (hidden state, cell state, the four activated gates for the backward)
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell,
                                             const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
    const Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), fresh = gates[2].tanh(), out = gates[3].sigmoid();
    const Tensor next = forget * cell + in * fresh;
    return make_tuple(out * next.tanh(), next, at::cat({in, forget, fresh, out}, 1));
}

// (gradients of the gates, of the cell state, of the bias)
std::tuple<Tensor, Tensor, Tensor> lstm_cell_grad(const MaybeTensor& dhidden, const MaybeTensor& dnext,
                                                  const Tensor& cell, const Tensor& next, const Tensor& workspace,
                                                  bool has_bias) {
    if (!(dhidden && dhidden->defined()) && !(dnext && dnext->defined())) return {};
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto gates = workspace.chunk(4, 1);
    const Tensor &in = gates[0], &forget = gates[1], &fresh = gates[2], &out = gates[3];
    const Tensor shown = next.tanh();
    const Tensor dh = dhidden && dhidden->defined() ? *dhidden : at::zeros_like(next);
    Tensor dcell = dh * out * slope_of_tanh(shown);
    if (dnext && dnext->defined()) dcell = dcell + *dnext;
    const Tensor dgates = at::cat({dcell * fresh * slope_of_sigmoid(in), dcell * cell * slope_of_sigmoid(forget),
                                   dcell * in * slope_of_tanh(fresh), dh * shown * slope_of_sigmoid(out)},
                                  1);
    return make_tuple(dgates, dcell * forget, has_bias ? dgates.sum(0) : Tensor());
}

// (hidden state; reset, update and new gate, the hidden state before and the hidden part of the new gate)
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden,
                                    const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto in = with_bias(input_gates, input_bias).chunk(3, 1);
    const auto past = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
    const Tensor reset = (in[0] + past[0]).sigmoid(), update = (in[1] + past[1]).sigmoid();
    const Tensor fresh = (in[2] + reset * past[2]).tanh();
    return make_tuple(fresh + update * (hidden - fresh), at::cat({reset, update, fresh, hidden, past[2]}, 1));
}

// (gradients of the input's gates, of the hidden state's, of the hidden state, and of the two biases)
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_grad(const Tensor& dnext, const Tensor& workspace,
                                                                 bool has_bias) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto saved = workspace.chunk(5, 1);
    const Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2], &hidden = saved[3], &past = saved[4];
    const Tensor dupdate = dnext * (hidden - fresh) * slope_of_sigmoid(update);
    const Tensor dfresh = dnext * (1 - update) * slope_of_tanh(fresh);
    const Tensor dreset = dfresh * past * slope_of_sigmoid(reset);
    const Tensor dinput = at::cat({dreset, dupdate, dfresh}, 1);
    const Tensor dpast = at::cat({dreset, dupdate, dfresh * reset}, 1);
    return make_tuple(dinput, dpast, dnext * update, has_bias ? dinput.sum(0) : Tensor(),
                      has_bias ? dpast.sum(0) : Tensor());
}

}  // namespace

void register_recurrent_cells() {
    // Leaked: a registration lasts as long as the process.
    static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                                              __LINE__);
    library->impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
    library->impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_grad));
    library->impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
    library->impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_grad));
}

}  // namespace npu_sim
