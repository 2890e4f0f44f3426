#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <cstdint>

namespace levin {

/// Options of ModelSummary, explained in describe().
struct ModelSummaryOptions {
  int64_t max_depth = 1;

  static void describe(Schema<ModelSummaryOptions>& schema);
};

/// Prints a table of the model's parts with their parameters when fit starts, on rank 0.
class ModelSummary final : public Callback {
 public:
  using Options = ModelSummaryOptions;

  explicit ModelSummary(const Options& options = {}) : options_(options) {}

  void on_fit_start(Trainer& trainer, Module& module) override;

 private:
  const Options options_;
};

}  // namespace levin
