#include <levin/strategies/ranks/participation_count.h>

#include <levin/core/comm/collective.h>

#include <ATen/ops/tensor.h>

namespace levin {

void ParticipationCount::add(const AccumulationWindow& window) {
  if (window.index == 0) own_ = 0;
  own_ += window.participation / static_cast<double>(window.size);
}

void ParticipationCount::reduce(const AccumulationWindow& window, Collective& ranks, const at::Device& device) {
  if (!window.sync || !window.uneven_inputs) return;
  at::Tensor counts = at::tensor({own_, window.has_next ? 1.0 : 0.0}, at::kDouble).to(device);
  ranks.all_reduce(counts, ReduceOp::kMean)->wait();
  const at::Tensor means = counts.cpu();
  participation_ = {.mean = means.const_data_ptr<double>()[0], .any_next = means.const_data_ptr<double>()[1] > 0};
}

}  // namespace levin
