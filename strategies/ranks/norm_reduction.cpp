#include <levin/strategies/ranks/norm_reduction.h>

#include <levin/core/comm/collective.h>
#include <levin/core/optim/gradient_clipping.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace levin {

at::Tensor reduce_norms(const at::Tensor& norms, double order, Collective& ranks, const at::Device& device) {
  const at::NoGradGuard no_grad;
  at::Tensor combined = norms.to(device, norms.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  if (order == 2) combined.square_();
  ranks.all_reduce(combined, std::isinf(order) ? ReduceOp::kMax : ReduceOp::kSum)->wait();
  if (order == 2) combined.sqrt_();
  return combined.to(norms.device());
}

void clip_parts_adaptively(const std::vector<at::Tensor>& local_shards, const optim::ParameterNames& names,
                           const FindPart& find_part, double ratio, Collective& ranks, const at::Device& device) {
  const at::NoGradGuard no_grad;
  struct Part {
    at::Tensor local_shard;
    at::Tensor rows;  ///< of each element, counted through all parameters
  };
  std::vector<Part> parts;
  int64_t rows = 0;
  for (const at::Tensor& local_shard : local_shards) {
    if (!local_shard.grad().defined()) continue;
    const auto part = find_part(names.require(local_shard));
    parts.push_back({local_shard, part->rows().add_(rows)});
    rows += part->row_count();
  }
  if (parts.empty()) return;
  const auto type = parts.front().local_shard.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor squares = at::zeros({2, rows}, parts.front().local_shard.options().requires_grad(false).dtype(type));
  const auto flat = [](const at::Tensor& tensor) { return tensor.detach().view({-1}); };
  for (const Part& part : parts) {
    squares[0].index_add_(0, part.rows, flat(part.local_shard).to(type).square());
    squares[1].index_add_(0, part.rows, flat(part.local_shard.grad()).to(type).square());
  }
  at::Tensor of_ranks = squares.to(device);
  ranks.all_reduce(of_ranks, ReduceOp::kSum)->wait();
  const at::Tensor norms = of_ranks.sqrt().to(squares.device());
  const at::Tensor divisors = optim::adaptive_divisor(norms[0], norms[1], ratio);
  for (const Part& part : parts) {
    at::Tensor gradient = flat(part.local_shard.grad());
    gradient.div_(divisors.index_select(0, part.rows).to(gradient.scalar_type()));
  }
}

}  // namespace levin
