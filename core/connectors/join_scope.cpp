#include <levin/core/connectors/join_scope.h>

#include <levin/core/base/expanded_tensor.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/interfaces/module.h>

namespace levin {

JoinScope::JoinScope(TrainerState& state, bool joins) : state_(state), joins_(joins) {
  if (!joins_) return;
  former_ = std::exchange(state_.joining, true);
  for (const auto& buffer : state_.module->buffers())
    if (!is_released(buffer)) buffers_.emplace_back(buffer, buffer.clone());
  updates_.emplace();
}

JoinScope::~JoinScope() {
  if (!joins_) return;
  state_.joining = former_;
  const at::NoGradGuard no_grad;
  for (auto& [buffer, copy] : buffers_) copy_elements(copy, buffer);
}

}  // namespace levin
