#include <levin/strategies/ranks/window_reducer.h>

#include <ATen/ops/tensor.h>

namespace levin {

Strategy::WindowTotals reduce_window(const AccumulationWindow& window, const LossWeight& window_weight,
                                     Collective& ranks, at::Device device) {
  const double has_next = window.has_next ? 1 : 0;
  if (device.is_cpu()) {
    const at::Tensor means = at::tensor({window_weight.on_host().value_or(0), has_next}, at::kDouble);
    ranks.all_reduce(means, ReduceOp::kMean)->wait();
    const double* mean = means.const_data_ptr<double>();
    return {.mean_weight = mean[0], .any_loss = mean[0] > 0, .any_next = mean[1] > 0};
  }
  Strategy::WindowTotals totals;
  const at::Tensor weight = window_weight.on(device).clone();
  ranks.all_reduce(weight, ReduceOp::kMean)->wait();
  totals.mean_weight = weight;
  if (!window.uneven_inputs) return totals;
  // Whether to go on is known by the host, which does not wait for what the device has yet to compute.
  const double has_loss = window_weight.on_host() == 0.0 ? 0 : 1;
  const at::Tensor means = at::tensor({has_loss, has_next}, at::kDouble);
  ranks.all_reduce(means, ReduceOp::kMean)->wait();
  totals.any_loss = means.const_data_ptr<double>()[0] > 0;
  totals.any_next = means.const_data_ptr<double>()[1] > 0;
  return totals;
}

}  // namespace levin
