#include <levin/core/trainer/stand_in.h>

namespace levin {

StandIn::StandIn(RankCore& core, bool active) : core_(core), active_(active) {
  if (!active_) return;
  core_.muted = true;
  for (const auto& buffer : core_.module().buffers()) buffers_.emplace_back(buffer, buffer.clone());
}

StandIn::~StandIn() {
  if (!active_) return;
  core_.muted = false;
  const at::NoGradGuard no_grad;
  for (auto& [buffer, copy] : buffers_) buffer.copy_(copy);
}

}  // namespace levin
