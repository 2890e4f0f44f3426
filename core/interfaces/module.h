#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/backward_options.h>
#include <levin/core/interfaces/optimizer_handle.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/core/metrics/log_options.h>
#include <levin/core/optim/gradient_clipping.h>
#include <levin/core/optim/optimizer_config.h>

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

class Callback;
class Trainer;

namespace metrics {
class Metric;
class MetricCollection;
}  // namespace metrics

struct ToggleOptions {
  bool sync_grad = true;  ///< false: no manual_backward in the scope combines gradients over ranks
};

namespace detail {

/// A module's view of the rank that runs it.
class ModuleRuntime {
 public:
  virtual ~ModuleRuntime() = default;
  virtual Trainer& trainer() = 0;
  virtual void log(std::string_view name, const at::Tensor& value, const LogOptions& options) = 0;
  virtual void log(std::string_view name, double value, const LogOptions& options) = 0;
  virtual void log(std::string_view name, metrics::Metric& metric, const LogOptions& options) = 0;
  virtual const at::Device& device() const = 0;
  virtual int64_t dataloader_idx() const = 0;
  virtual const std::vector<OptimizerHandle*>& optimizers() = 0;
  virtual OptimizerConfigs configured_optimizers() { return {}; }
  virtual void manual_backward(const at::Tensor& loss, const BackwardOptions& options) = 0;
  /// Clips the gradients of an optimizer. `in_step`: the optimizer's step that follows may do it.
  virtual void clip_gradients(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm, bool in_step) = 0;
  virtual at::Tensor all_gather(const at::Tensor& tensor, bool sync_grads) = 0;
  /// Puts what was copied to the device ahead of time in place of tensors of the host.
  virtual void use_prefetched(Batch& /*batch*/, const at::Device& /*device*/) {}
};

}  // namespace detail

/// A model and how it is trained: what users subclass. The trainer calls the steps and hooks; `docs/architecture.md`
/// has their order.
class Module : public torch::nn::Module, public Configurable {
 public:
  Module();

  // ---- The steps. Each gets one batch, already on the device.

  /// Returns a scalar loss, or nothing to skip the batch.
  virtual StepOutput training_step(const Batch& batch, int64_t batch_idx);
  virtual StepOutput validation_step(const Batch& batch, int64_t batch_idx);
  virtual StepOutput test_step(const Batch& batch, int64_t batch_idx);
  virtual Batch predict_step(const Batch& batch, int64_t batch_idx);
  /// Returns what an exported model computes: named tensors of named tensors, differentiable ones where it shall be
  /// trained on. Default: predict_step.
  virtual Batch export_step(const Batch& batch) { return predict_step(batch, 0); }

  /// Receive the step's output under every strategy; with data parallelism the gathered parts.
  virtual StepOutput training_step_end(StepOutput output) { return output; }
  virtual StepOutput validation_step_end(StepOutput output) { return output; }
  virtual StepOutput test_step_end(StepOutput output) { return output; }

  // ---- Configuration.

  /// Returns one or several optimizers with their schedulers. Default: configured_optimizers().
  virtual OptimizerConfigs configure_optimizers();
  /// Builds large layers once the strategy is known; called again on every fit, so it must check what is there. Before
  /// load_from_checkpoint loads weights it is called without a trainer.
  virtual void configure_model() {}
  /// Returns callbacks of the module's own; they replace those of the trainer that have the same type.
  virtual std::vector<std::shared_ptr<Callback>> configure_callbacks() { return {}; }

  // ---- Data hooks, used where no data module and no loaders are given.

  virtual void prepare_data() {}
  virtual DataLoader train_dataloader() { return {}; }
  virtual DataLoaders val_dataloader() { return {}; }
  virtual DataLoaders test_dataloader() { return {}; }
  virtual DataLoaders predict_dataloader() { return {}; }

  // ---- Hooks, in the order of their names in docs/architecture.md.

  virtual void setup(Stage /*stage*/) {}
  virtual void teardown(Stage /*stage*/) {}
  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  /// Gets the batch on the host. An override ends with a call of this one where its batches may be copied to the device
  /// ahead of time all the same; see docs/memory.md.
  virtual Batch on_before_batch_transfer(Batch batch, int64_t /*dataloader_idx*/) {
    ++untouched_batches_;
    return batch;
  }
  /// Copies to the device, by default, the tensors that are not there, unless they were copied ahead of time.
  virtual Batch transfer_batch_to_device(Batch batch, const at::Device& device, int64_t dataloader_idx);
  virtual Batch on_after_batch_transfer(Batch batch, int64_t /*dataloader_idx*/) { return batch; }
  /// Returns false to skip the rest of the epoch.
  virtual bool on_train_batch_start(const Batch& /*batch*/, int64_t /*batch_idx*/) { return true; }
  virtual void on_train_batch_end(const StepOutput& /*output*/, const Batch& /*batch*/, int64_t /*batch_idx*/) {}
  virtual void on_before_zero_grad(OptimizerHandle& /*optimizer*/) {}
  virtual void on_before_backward(const at::Tensor& /*loss*/) {}
  virtual void on_after_backward() {}
  virtual void on_before_optimizer_step(OptimizerHandle& /*optimizer*/) {}
  /// Sets the module's mode for a validation, before on_validation_start. Default: evaluation mode; an override may
  /// leave parts in training mode.
  virtual void on_validation_model_eval() { eval(); }
  /// Called when a validation has ended, also where a signal ended it, with every submodule in its former mode again.
  virtual void on_validation_model_train() {}
  virtual void on_validation_start() {}
  virtual void on_validation_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_validation_batch_start(const Batch& /*batch*/, int64_t /*batch_idx*/, int64_t /*dataloader_idx*/) {}
  virtual void on_validation_batch_end(const StepOutput& /*output*/, const Batch& /*batch*/, int64_t /*batch_idx*/,
                                       int64_t /*dataloader_idx*/) {}
  virtual void on_test_model_eval() { eval(); }
  virtual void on_test_model_train() {}
  virtual void on_test_start() {}
  virtual void on_test_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}
  virtual void on_test_batch_start(const Batch& /*batch*/, int64_t /*batch_idx*/, int64_t /*dataloader_idx*/) {}
  virtual void on_test_batch_end(const StepOutput& /*output*/, const Batch& /*batch*/, int64_t /*batch_idx*/,
                                 int64_t /*dataloader_idx*/) {}
  virtual void on_predict_model_eval() { eval(); }
  virtual void on_predict_model_train() {}
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}
  virtual void on_predict_batch_start(const Batch& /*batch*/, int64_t /*batch_idx*/, int64_t /*dataloader_idx*/) {}
  virtual void on_predict_batch_end(const Batch& /*prediction*/, const Batch& /*batch*/, int64_t /*batch_idx*/,
                                    int64_t /*dataloader_idx*/) {}
  /// Keeps buffers of this module out of checkpoints and files of weights, which then need not have them, as PyTorch's
  /// `persistent=False` does: dotted names from here on, `*` for any characters ("*.mask"). For the constructor or
  /// configure_model, which give them their values.
  void set_non_persistent_buffers(std::vector<std::string> patterns) { non_persistent_ = std::move(patterns); }
  const std::vector<std::string>& non_persistent_buffers() const { return non_persistent_; }
  /// Save and load state beside parameters and buffers.
  virtual void on_save_checkpoint(State& /*state*/) {}
  virtual void on_load_checkpoint(const State& /*state*/) {}

  // ---- Steps of the optimization that a module may take over.

  /// Runs backward of a loss of automatic optimization: scaled, and divided by the batches of its window. Default:
  /// `loss.backward()`. Strategies combine gradients while it runs.
  virtual void backward(const at::Tensor& loss) { loss.backward(); }
  /// Takes a step of an optimizer. Default: `optimizer.step(closure)`.
  virtual void optimizer_step(int64_t epoch, int64_t batch_idx, OptimizerHandle& optimizer,
                              const OptimizerHandle::Closure& closure);
  virtual void optimizer_zero_grad(OptimizerHandle& optimizer) { optimizer.zero_grad(); }
  /// Clips gradients; called only where the trainer's options ask for it. Default: clips as they say, where it can in
  /// the pass over the gradients that the step makes anyway.
  virtual void configure_gradient_clipping(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm);
  /// Steps a scheduler. Default: `scheduler.step()`, or with the monitored metric for a plateau scheduler.
  virtual void lr_scheduler_step(optim::Scheduler& scheduler, std::optional<double> metric);

  // ---- What a module may call.

  /// Logs a value. A tensor must hold one element; it stays on its device until a logging boundary.
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  void log(std::string_view name, const at::Scalar& value, const LogOptions& options = {});
  /// Logs a metric, which is computed and reset at the epoch's end, and reduced over ranks by itself. The metric must
  /// be a member: the trainer keeps its address.
  void log(std::string_view name, metrics::Metric& metric, const LogOptions& options = {});
  /// Logs several values with the same options.
  void log_dict(const std::map<std::string, at::Tensor>& values, const LogOptions& options = {});
  /// Logs each metric of a collection by its name. The collection must be a member.
  void log_dict(metrics::MetricCollection& collection, const LogOptions& options = {});

  /// The trainer that runs this module. Throws levin::Error when there is none.
  Trainer& trainer() const;
  bool attached() const { return runtime_ != nullptr; }
  /// The device of this rank; the CPU when no trainer runs the module.
  at::Device device() const;
  /// Gathers the tensor of every rank, stacked in rank order along a new first dimension. Every rank must call it at
  /// the same place with the same shape. `sync_grads`: the result is differentiable, as a loss over the examples of all
  /// ranks needs; each rank's tensor then gets the sum of all ranks' gradients, and every rank must run backward
  /// through it. Without, the result is detached. Under `pipeline` the tensors are those of one rank for each replica:
  /// the stages of a pipeline have the same examples.
  at::Tensor all_gather(const at::Tensor& tensor, bool sync_grads = false) const;
  /// Makes no parameter require gradients and sets evaluation mode; unfreeze makes all require them and sets training
  /// mode. A part is frozen likewise: `levin::freeze(*backbone)`. What is frozen before configure_optimizers need not
  /// be handed over.
  void freeze();
  void unfreeze();
  /// Makes the optimizer, with its scheduler, that the configuration names (`optimizer`, `scheduler`), for
  /// configure_optimizers to return or to change. Throws ConfigError where it names none.
  OptimizerConfigs configured_optimizers() const;
  /// Index of the loader that the present step belongs to.
  int64_t dataloader_idx() const;
  /// The optimizer at an index; throws levin::Error naming how many there are.
  OptimizerHandle& optimizer(int64_t index = 0) const;
  const std::vector<OptimizerHandle*>& optimizers() const;

  // ---- Manual optimization; docs/manual-optimization.md shows it.

  /// false makes training_step responsible for zero_grad, backward, the steps of optimizers and those of schedulers.
  /// Set it in the constructor.
  bool automatic_optimization = true;
  /// Runs backward of a scalar loss as the strategy and the precision want it, with on_before_backward and
  /// on_after_backward around it. Every rank must call it at the same places.
  void manual_backward(const at::Tensor& loss, const BackwardOptions& options = {});
  /// Clips the gradients of the optimizer's parameters now; under loss scaling they are unscaled first.
  void clip_gradients(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm = ClipAlgorithm::kNorm);
  /// The scheduler that configure_optimizers gave the optimizer at an index, the first where there are several. Nobody
  /// else steps it in manual optimization. Throws levin::Error where there is none.
  optim::Scheduler& scheduler(int64_t optimizer_index = 0) const;
  /// Schedulers of all optimizers, in the order of configure_optimizers.
  std::vector<optim::Scheduler*> schedulers() const;

  /// Scope in which no parameter of another optimizer requires gradients, unless this one has it too. Scopes of several
  /// optimizers must not overlap.
  class [[nodiscard]] ToggleGuard {
   public:
    ToggleGuard(Module& module, OptimizerHandle& optimizer) : module_(module), optimizer_(optimizer) {}
    ~ToggleGuard() { module_.untoggle_optimizer(optimizer_); }
    ToggleGuard(const ToggleGuard&) = delete;
    ToggleGuard& operator=(const ToggleGuard&) = delete;

   private:
    Module& module_;
    OptimizerHandle& optimizer_;
  };
  ToggleGuard toggle_optimizer(OptimizerHandle& optimizer, const ToggleOptions& options = {});
  void untoggle_optimizer(OptimizerHandle& optimizer);

  /// Attaches the runtime; the trainer does so for the time it runs the module.
  void attach(detail::ModuleRuntime* runtime) { runtime_ = runtime; }
  /// The runtime it is attached to, or nullptr.
  detail::ModuleRuntime* attached_runtime() const { return runtime_; }
  /// Number of batches that came to this class's own on_before_batch_transfer.
  int64_t untouched_batches() const { return untouched_batches_; }

 private:
  detail::ModuleRuntime& runtime(const char* call) const;

  std::vector<std::string> non_persistent_;
  bool toggled_sync_grad_ = true;  ///< as the toggled optimizer wants it
  int64_t untouched_batches_ = 0;
  detail::ModuleRuntime* runtime_ = nullptr;
};

/// See Module::freeze.
void freeze(torch::nn::Module& module);
void unfreeze(torch::nn::Module& module);

/// Parameters and buffers by dotted name, each tensor once: a submodule registered twice appears under its first name.
std::vector<std::pair<std::string, at::Tensor>> named_tensors(const torch::nn::Module& module);
/// Those that checkpoints and files of weights have: without non_persistent_buffers of the module or one inside of it,
/// and without the frozen parameters of adapters with save_adapters_only.
std::vector<std::pair<std::string, at::Tensor>> saved_tensors(const torch::nn::Module& module);
/// Parameters by dotted name, each tensor once, as in named_tensors.
std::vector<std::pair<std::string, at::Tensor>> named_unique_parameters(const torch::nn::Module& module);

}  // namespace levin
