#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>
#include <levin/core/data/batch.h>
#include <levin/core/interfaces/optimizer_handle.h>
#include <levin/core/interfaces/step_output.h>

#include <cstdint>
#include <exception>
#include <string>

namespace levin {

class Module;
class Trainer;

/// Code of the user's that runs at given moments, on every rank. Override what is needed. Its state is part of every
/// checkpoint. docs/architecture.md has the order of the hooks.
class Callback : public Configurable, public Stateful {
 public:
  /// Key of this callback's state in a checkpoint, which several callbacks must not share. Default: the registered name
  /// or the type.
  virtual std::string state_key() const;

  virtual void setup(Trainer&, Module&, Stage /*stage*/) {}
  virtual void teardown(Trainer&, Module&, Stage /*stage*/) {}
  virtual void on_fit_start(Trainer&, Module&) {}
  virtual void on_fit_end(Trainer&, Module&) {}
  virtual void on_sanity_check_start(Trainer&, Module&) {}
  virtual void on_sanity_check_end(Trainer&, Module&) {}
  virtual void on_train_start(Trainer&, Module&) {}
  virtual void on_train_end(Trainer&, Module&) {}
  virtual void on_train_epoch_start(Trainer&, Module&) {}
  virtual void on_train_epoch_end(Trainer&, Module&) {}
  virtual void on_train_batch_start(Trainer&, Module&, const Batch&, int64_t /*batch_idx*/) {}
  virtual void on_train_batch_end(Trainer&, Module&, const StepOutput&, const Batch&, int64_t /*batch_idx*/) {}
  virtual void on_before_zero_grad(Trainer&, Module&, OptimizerHandle&) {}
  virtual void on_before_backward(Trainer&, Module&, const at::Tensor& /*loss*/) {}
  virtual void on_after_backward(Trainer&, Module&) {}
  virtual void on_before_optimizer_step(Trainer&, Module&, OptimizerHandle&) {}

  virtual void on_validation_start(Trainer&, Module&) {}
  virtual void on_validation_end(Trainer&, Module&) {}
  virtual void on_validation_epoch_start(Trainer&, Module&) {}
  virtual void on_validation_epoch_end(Trainer&, Module&) {}
  virtual void on_validation_batch_start(Trainer&, Module&, const Batch&, int64_t /*batch_idx*/,
                                         int64_t /*dataloader_idx*/) {}
  virtual void on_validation_batch_end(Trainer&, Module&, const StepOutput&, const Batch&, int64_t /*batch_idx*/,
                                       int64_t /*dataloader_idx*/) {}
  virtual void on_test_start(Trainer&, Module&) {}
  virtual void on_test_end(Trainer&, Module&) {}
  virtual void on_test_epoch_start(Trainer&, Module&) {}
  virtual void on_test_epoch_end(Trainer&, Module&) {}
  virtual void on_test_batch_start(Trainer&, Module&, const Batch&, int64_t /*batch_idx*/, int64_t /*dataloader_idx*/) {
  }
  virtual void on_test_batch_end(Trainer&, Module&, const StepOutput&, const Batch&, int64_t /*batch_idx*/,
                                 int64_t /*dataloader_idx*/) {}
  virtual void on_predict_start(Trainer&, Module&) {}
  virtual void on_predict_end(Trainer&, Module&) {}
  /// Whether this callback keeps what predict_step returns, so that `predict` need not collect it as well.
  virtual bool takes_predictions() const { return false; }
  virtual void on_predict_epoch_start(Trainer&, Module&) {}
  virtual void on_predict_epoch_end(Trainer&, Module&) {}
  virtual void on_predict_batch_start(Trainer&, Module&, const Batch&, int64_t /*batch_idx*/,
                                      int64_t /*dataloader_idx*/) {}
  virtual void on_predict_batch_end(Trainer&, Module&, const Batch& /*prediction*/, const Batch&, int64_t /*batch_idx*/,
                                    int64_t /*dataloader_idx*/) {}

  /// Called when user code threw, or training failed; the error goes on to the caller after this.
  virtual void on_exception(Trainer&, Module&, const std::exception_ptr&) {}
  /// Called with a checkpoint's tree before it is written, and after it was read.
  virtual void on_save_checkpoint(Trainer&, Module&, State& /*checkpoint*/) {}
  virtual void on_load_checkpoint(Trainer&, Module&, const State& /*checkpoint*/) {}

  /// Whether this acts on the metrics of an epoch (early stopping): it then runs after all others and after the
  /// module's own hook.
  virtual bool runs_after_metrics() const { return false; }
};

}  // namespace levin
