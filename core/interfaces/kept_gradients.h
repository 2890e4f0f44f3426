#pragma once

#include <levin/core/interfaces/divided_model.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace levin {

/// What a DividedModel also derives from whose ranks keep gradients of a manual_backward without `sync_grad` apart from
/// those that optimizers step and clear; see DividedModel::keeps_gradients_back.
class KeptGradients {
 public:
  virtual ~KeptGradients() = default;
  /// Drops what the ranks keep of gradients, but of those of these local shards.
  virtual void drop_kept_gradients(const std::vector<at::Tensor>& but_of) = 0;
  /// Combines what the ranks keep, as the next manual_backward with `sync_grad` would. Collective.
  virtual void combine_kept_gradients() = 0;
};

/// The gradients that ranks keep, where there are some now, else nullptr.
inline KeptGradients* find_kept_gradients(DividedModel& model) {
  return model.keeps_gradients_back() ? dynamic_cast<KeptGradients*>(&model) : nullptr;
}

}  // namespace levin
