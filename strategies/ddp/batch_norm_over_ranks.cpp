#include <levin/strategies/ddp/batch_norm_over_ranks.h>

namespace levin {

const BatchNormOverRanks& BatchNormOverRanks::of(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_batch_norm_over_ranks() : cpu_batch_norm_over_ranks();
}

}  // namespace levin
