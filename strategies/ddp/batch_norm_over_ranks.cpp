#include <levin/strategies/ddp/batch_norm_over_ranks.h>

#include <levin/core/accelerators/accelerator_registry.h>

namespace levin {

const BatchNormOverRanks& BatchNormOverRanks::of(const at::Tensor& tensor) {
  return accelerator_of(tensor.device()).has_batch_norm_parts() ? cuda_batch_norm_over_ranks()
                                                                : cpu_batch_norm_over_ranks();
}

at::ScalarType arithmetic_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor as_type(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() ? tensor.to(type) : tensor;
}

}  // namespace levin
