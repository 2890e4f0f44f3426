#include <levin/callbacks/rank_agreement.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <ATen/ops/tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

namespace levin {

void require_on_every_rank(const Trainer& trainer, const Callback& callback, const std::string& name) {
  if (trainer.world_size() > 1 && trainer.strategy().ranks().are_threads() && !callback.can_rebuild())
    throw Error(
        "callbacks",
        fmt::format("{} must be on every rank, and the one handed over cannot be made again; hint: make it with "
                    "levin::make",
                    name));
}

std::vector<double> sum_over_ranks(const Trainer& trainer, std::vector<double> values) {
  if (trainer.world_size() == 1) return values;
  at::Tensor sums = at::tensor(values, at::kDouble).to(trainer.device());
  trainer.strategy().collective().all_reduce(sums, ReduceOp::kSum)->wait();
  const at::Tensor on_host = sums.cpu();
  values.assign(on_host.const_data_ptr<double>(), on_host.const_data_ptr<double>() + on_host.numel());
  return values;
}

void wait_for(const at::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.getStream(device).synchronize();
}

}  // namespace levin
