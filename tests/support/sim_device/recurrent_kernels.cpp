#include "tests/support/sim_device/recurrent_kernels.h"

#include "tests/support/sim_device/kernel.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace levin::testing::sim {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor or_undefined(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }

at::Tensor plus(const at::Tensor& gates, const at::Tensor& bias) { return bias.defined() ? gates + bias : gates; }

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& cell, const OptionalTensor& input_bias,
                                                         const OptionalTensor& hidden_bias) {
  const auto made = run_kernel("_thnn_fused_lstm_cell",
                               {input_gates, hidden_gates, cell, or_undefined(input_bias), or_undefined(hidden_bias)},
                               {}, [](const Tensors& in) -> Tensors {
                                 const Tensors gates = (plus(in[0], in[3]) + plus(in[1], in[4])).chunk(4, 1);
                                 const at::Tensor input = gates[0].sigmoid(), forget = gates[1].sigmoid();
                                 const at::Tensor candidate = gates[2].tanh(), output = gates[3].sigmoid();
                                 const at::Tensor next = forget * in[2] + input * candidate;
                                 return {output * next.tanh(), next, at::cat({input, forget, candidate, output}, 1)};
                               });
  return {made[0], made[1], made[2]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const OptionalTensor& hidden_gradient,
                                                                  const OptionalTensor& cell_gradient,
                                                                  const at::Tensor& cell, const at::Tensor& next,
                                                                  const at::Tensor& workspace, bool has_bias) {
  const auto made =
      run_kernel("_thnn_fused_lstm_cell_backward",
                 {or_undefined(hidden_gradient), or_undefined(cell_gradient), cell, next, workspace}, {},
                 [has_bias](const Tensors& in) -> Tensors {
                   const Tensors gates = in[4].chunk(4, 1);
                   const at::Tensor &input = gates[0], &forget = gates[1], &candidate = gates[2], &output = gates[3];
                   const at::Tensor of_hidden = in[0].defined() ? in[0] : at::zeros_like(in[3]);
                   const at::Tensor shown = in[3].tanh();
                   at::Tensor of_next = of_hidden * output * (1 - shown * shown);
                   if (in[1].defined()) of_next = of_next + in[1];
                   const at::Tensor of_gates = at::cat(
                       {of_next * candidate * input * (1 - input), of_next * in[2] * forget * (1 - forget),
                        of_next * input * (1 - candidate * candidate), of_hidden * shown * output * (1 - output)},
                       1);
                   return {of_gates, of_next * forget, has_bias ? of_gates.sum(0) : at::Tensor()};
                 });
  return {made[0], made[1], made[2]};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                            const at::Tensor& hidden, const OptionalTensor& input_bias,
                                            const OptionalTensor& hidden_bias) {
  const auto made = run_kernel(
      "_thnn_fused_gru_cell", {input_gates, hidden_gates, hidden, or_undefined(input_bias), or_undefined(hidden_bias)},
      {}, [](const Tensors& in) -> Tensors {
        const Tensors of_input = plus(in[0], in[3]).chunk(3, 1), of_hidden = plus(in[1], in[4]).chunk(3, 1);
        const at::Tensor reset = (of_input[0] + of_hidden[0]).sigmoid();
        const at::Tensor update = (of_input[1] + of_hidden[1]).sigmoid();
        const at::Tensor candidate = (of_input[2] + reset * of_hidden[2]).tanh();
        return {(in[2] - candidate) * update + candidate, at::cat({reset, update, candidate, in[2], of_hidden[2]}, 1)};
      });
  return {made[0], made[1]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& gradient,
                                                                                         const at::Tensor& workspace,
                                                                                         bool has_bias) {
  const auto made =
      run_kernel("_thnn_fused_gru_cell_backward", {gradient, workspace}, {}, [has_bias](const Tensors& in) -> Tensors {
        const Tensors kept = in[1].chunk(5, 1);
        const at::Tensor &reset = kept[0], &update = kept[1], &candidate = kept[2], &hidden = kept[3];
        const at::Tensor of_update = in[0] * (hidden - candidate) * update * (1 - update);
        const at::Tensor of_candidate = in[0] * (1 - update) * (1 - candidate * candidate);
        const at::Tensor of_reset = of_candidate * kept[4] * reset * (1 - reset);
        const at::Tensor of_input = at::cat({of_reset, of_update, of_candidate}, 1);
        const at::Tensor of_hidden = at::cat({of_reset, of_update, of_candidate * reset}, 1);
        return {of_input, of_hidden, in[0] * update, has_bias ? of_input.sum(0) : at::Tensor(),
                has_bias ? of_hidden.sum(0) : at::Tensor()};
      });
  return {made[0], made[1], made[2], made[3], made[4]};
}

}  // namespace

void register_recurrent_kernels(torch::Library& operators) {
  operators.impl("_thnn_fused_lstm_cell", lstm_cell);
  operators.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  operators.impl("_thnn_fused_gru_cell", gru_cell);
  operators.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace levin::testing::sim
