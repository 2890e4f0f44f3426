#pragma once

#include <levin/core/interfaces/callback.h>

#include <cstdint>

namespace levin {

/// Hands the graph of the model, traced with the first batch of a fit, to the loggers. What cannot be traced is a
/// warning.
class ModelGraph final : public Callback {
 public:
  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;

 private:
  bool is_due_ = false;
};

}  // namespace levin
