#include <levin/strategies/ranks/uneven_inputs_reducer.h>

#include <levin/core/comm/collective.h>

#include <ATen/ops/tensor.h>

namespace levin {

void UnevenInputsReducer::add(const AccumulationWindow& window) {
  if (window.index == 0) own_weight_ = 0;
  own_weight_ += window.weight / static_cast<double>(window.size);
}

void UnevenInputsReducer::reduce(const AccumulationWindow& window, Collective& ranks) {
  if (!window.sync || !window.uneven_inputs) return;
  // On the host, whatever the device: nobody waits for the batches that the devices have yet to compute.
  const at::Tensor means = at::tensor({own_weight_, window.has_next ? 1.0 : 0.0}, at::kDouble);
  ranks.all_reduce(means, ReduceOp::kMean)->wait();
  newest_ = {.mean_weight = means.const_data_ptr<double>()[0], .any_next = means.const_data_ptr<double>()[1] > 0};
}

}  // namespace levin
