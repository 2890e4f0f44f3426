#pragma once

#include <levin/core/interfaces/callback.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

namespace levin {

/// The hooks of a LambdaCallback, each with the parameters of the callback's method of that name; empty ones do
/// nothing.
struct LambdaCallbackOptions {
  using Hook = std::function<void(Trainer&, Module&)>;
  using StageHook = std::function<void(Trainer&, Module&, Stage)>;
  using BatchHook = std::function<void(Trainer&, Module&, const Batch&, int64_t /*batch_idx*/)>;
  using OutputHook = std::function<void(Trainer&, Module&, const StepOutput&, const Batch&, int64_t /*batch_idx*/)>;
  using OptimizerHook = std::function<void(Trainer&, Module&, OptimizerHandle&)>;
  using LoaderBatchHook =
      std::function<void(Trainer&, Module&, const Batch&, int64_t /*batch_idx*/, int64_t /*dataloader_idx*/)>;
  using LoaderOutputHook = std::function<void(Trainer&, Module&, const StepOutput&, const Batch&, int64_t /*batch_idx*/,
                                              int64_t /*dataloader_idx*/)>;
  using PredictionHook = std::function<void(Trainer&, Module&, const Batch&, const Batch&, int64_t /*batch_idx*/,
                                            int64_t /*dataloader_idx*/)>;
  using LossHook = std::function<void(Trainer&, Module&, const at::Tensor&)>;
  using ExceptionHook = std::function<void(Trainer&, Module&, const std::exception_ptr&)>;
  using SaveHook = std::function<void(Trainer&, Module&, State&)>;
  using LoadHook = std::function<void(Trainer&, Module&, const State&)>;

  StageHook setup = {};
  StageHook teardown = {};
  Hook on_fit_start = {};
  Hook on_fit_end = {};
  Hook on_sanity_check_start = {};
  Hook on_sanity_check_end = {};
  Hook on_train_start = {};
  Hook on_train_end = {};
  Hook on_train_epoch_start = {};
  Hook on_train_epoch_end = {};
  BatchHook on_train_batch_start = {};
  OutputHook on_train_batch_end = {};
  OptimizerHook on_before_zero_grad = {};
  LossHook on_before_backward = {};
  Hook on_after_backward = {};
  OptimizerHook on_before_optimizer_step = {};
  Hook on_validation_start = {};
  Hook on_validation_end = {};
  Hook on_validation_epoch_start = {};
  Hook on_validation_epoch_end = {};
  LoaderBatchHook on_validation_batch_start = {};
  LoaderOutputHook on_validation_batch_end = {};
  Hook on_test_start = {};
  Hook on_test_end = {};
  Hook on_test_epoch_start = {};
  Hook on_test_epoch_end = {};
  LoaderBatchHook on_test_batch_start = {};
  LoaderOutputHook on_test_batch_end = {};
  Hook on_predict_start = {};
  Hook on_predict_end = {};
  Hook on_predict_epoch_start = {};
  Hook on_predict_epoch_end = {};
  LoaderBatchHook on_predict_batch_start = {};
  PredictionHook on_predict_batch_end = {};
  ExceptionHook on_exception = {};
  SaveHook on_save_checkpoint = {};
  LoadHook on_load_checkpoint = {};
};

/// A callback from functions, for code (YAML cannot name one):
///
///     levin::LambdaCallback({.on_train_epoch_end = [](levin::Trainer& trainer, levin::Module&) { ... }})
class LambdaCallback final : public Callback {
 public:
  using Options = LambdaCallbackOptions;

  explicit LambdaCallback(Options options) : hooks_(std::move(options)) {}

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void teardown(Trainer& trainer, Module& module, Stage stage) override;
  void on_fit_start(Trainer& trainer, Module& module) override;
  void on_fit_end(Trainer& trainer, Module& module) override;
  void on_sanity_check_start(Trainer& trainer, Module& module) override;
  void on_sanity_check_end(Trainer& trainer, Module& module) override;
  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_train_epoch_start(Trainer& trainer, Module& module) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_before_zero_grad(Trainer& trainer, Module& module, OptimizerHandle& optimizer) override;
  void on_before_backward(Trainer& trainer, Module& module, const at::Tensor& loss) override;
  void on_after_backward(Trainer& trainer, Module& module) override;
  void on_before_optimizer_step(Trainer& trainer, Module& module, OptimizerHandle& optimizer) override;
  void on_validation_start(Trainer& trainer, Module& module) override;
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_validation_epoch_start(Trainer& trainer, Module& module) override;
  void on_validation_epoch_end(Trainer& trainer, Module& module) override;
  void on_validation_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx,
                                 int64_t dataloader_idx) override;
  void on_validation_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                               int64_t batch_idx, int64_t dataloader_idx) override;
  void on_test_start(Trainer& trainer, Module& module) override;
  void on_test_end(Trainer& trainer, Module& module) override;
  void on_test_epoch_start(Trainer& trainer, Module& module) override;
  void on_test_epoch_end(Trainer& trainer, Module& module) override;
  void on_test_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx,
                           int64_t dataloader_idx) override;
  void on_test_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                         int64_t batch_idx, int64_t dataloader_idx) override;
  void on_predict_start(Trainer& trainer, Module& module) override;
  void on_predict_end(Trainer& trainer, Module& module) override;
  void on_predict_epoch_start(Trainer& trainer, Module& module) override;
  void on_predict_epoch_end(Trainer& trainer, Module& module) override;
  void on_predict_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx,
                              int64_t dataloader_idx) override;
  void on_predict_batch_end(Trainer& trainer, Module& module, const Batch& prediction, const Batch& batch,
                            int64_t batch_idx, int64_t dataloader_idx) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;
  void on_save_checkpoint(Trainer& trainer, Module& module, State& checkpoint) override;
  void on_load_checkpoint(Trainer& trainer, Module& module, const State& checkpoint) override;

 private:
  const Options hooks_;
};

}  // namespace levin
