#include <levin/core/trainer/stand_in.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/metric.h>

namespace levin {

Batch stand_in_batch(RankCore& core, const DataLoader& loader) {
  DataLoaderPosition first = core.position(core.progress.epoch, 0);
  first.rank = 0;
  first.world_size = 1;
  auto batch = loader.with_options(loader.options()).pass(first).next();
  if (!batch) throw Error("data", "a rank has no data at all; hint: give every rank at least one example");
  return std::move(*batch);
}

StandIn::StandIn(RankCore& core, bool active) : core_(core), active_(active) {
  if (!active_) return;
  was_muted_ = std::exchange(core_.muted, true);
  for (const auto& buffer : core_.module().buffers()) buffers_.emplace_back(buffer, buffer.clone());
  for (const auto* collector : {&core_.train_metrics, &core_.evaluation_metrics})
    for (metrics::Metric* metric : collector->logged_metrics()) metrics_.emplace_back(metric, metric->state_dict());
}

StandIn::~StandIn() {
  if (!active_) return;
  core_.muted = was_muted_;
  const at::NoGradGuard no_grad;
  for (auto& [buffer, copy] : buffers_) buffer.copy_(copy);
  for (const auto& [metric, state] : metrics_) metric->load_state_dict(state);
}

}  // namespace levin
