#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <cstdint>
#include <memory>

namespace levin {

class UnitSizeRecorder;

/// Options of ModelSummary, explained in describe().
struct ModelSummaryOptions {
  int64_t max_depth = 1;
  bool sizes = false;

  static void describe(Schema<ModelSummaryOptions>& schema);
};

/// Prints a table of the model's parts with their parameters when fit starts, on rank 0. With `sizes` it is printed
/// after the first training batch, and has what the units were given in it, what they gave, and the operations of both.
class ModelSummary final : public Callback {
 public:
  using Options = ModelSummaryOptions;

  explicit ModelSummary(const Options& options = {});
  ~ModelSummary() override;

  void on_fit_start(Trainer& trainer, Module& module) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_before_backward(Trainer& trainer, Module& module, const at::Tensor& loss) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;
  void teardown(Trainer& trainer, Module& module, Stage stage) override;

 private:
  void print_with_sizes(Module& module);

  const Options options_;
  bool waits_for_batch_ = false;
  std::unique_ptr<UnitSizeRecorder> recorder_;  ///< in the first batch
};

}  // namespace levin
