#include <levin/strategies/ranks/norm_reduction.h>

#include <levin/core/comm/collective.h>

#include <ATen/core/grad_mode.h>

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

}  // namespace levin
