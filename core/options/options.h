#pragma once

#include <levin/core/base/spec.h>
#include <levin/core/devices/device_spec.h>
#include <levin/core/interchange/weight_rules.h>
#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/nn/adapter_options.h>
#include <levin/core/optim/accumulation_schedule.h>
#include <levin/core/optim/scheduler_option.h>
#include <levin/core/options/option_types.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class Callback;
class Logger;
class Precision;
class Profiler;
class Strategy;

namespace optim {
class NamedOptimizer;
}

/// The `logger` option: true (csv and tensorboard), false (none), one logger or a list.
class LoggerSpecs {
 public:
  LoggerSpecs() = default;
  LoggerSpecs(bool enabled) : enabled_(enabled) {}  // NOLINT(google-explicit-constructor)
  LoggerSpecs(const char* name)
      : specs_(std::vector<Spec<Logger>>{Spec<Logger>(name)}) {}  // NOLINT(google-explicit-constructor)
  LoggerSpecs(std::initializer_list<Spec<Logger>> specs) : specs_(std::vector<Spec<Logger>>(specs)) {}
  explicit LoggerSpecs(std::vector<Spec<Logger>> specs) : specs_(std::move(specs)) {}

  /// The default loggers where none were named.
  std::vector<Spec<Logger>> resolve() const;
  bool enabled() const { return enabled_; }
  bool named() const { return specs_.has_value(); }
  const std::vector<Spec<Logger>>& specs() const { return *specs_; }

 private:
  bool enabled_ = true;
  std::optional<std::vector<Spec<Logger>>> specs_;
};

template <>
struct ConfigCodec<LoggerSpecs> {
  static std::string type_name() { return "boolean, name, or list of names and mappings"; }
  static LoggerSpecs parse(const Config& node, const std::string& path);
  static Config dump(const LoggerSpecs& value);
};

/// Everything that users may set on a trainer, with its default; explained in describe(). What has been worked out from
/// it is ResolvedOptions.
struct TrainerOptions {
  // Duration
  /// Epochs to train; -1 without end; 1000 when max_steps and max_time are unset too
  std::optional<int64_t> max_epochs = {};
  std::optional<int64_t> min_epochs = {};
  int64_t max_steps = -1;
  std::optional<int64_t> min_steps = {};
  std::optional<TimeLimit> max_time = {};
  bool handle_signals = true;

  // Hardware
  std::string accelerator = "auto";
  DeviceSpec devices = {};
  GpuSpec gpus = {};
  bool auto_select_gpus = false;
  int64_t num_nodes = 1;
  Spec<Strategy> strategy = "auto";
  Spec<Precision> precision = "32-true";
  bool sync_batchnorm = false;
  std::optional<std::string> float32_matmul_precision = {};
  std::string memory_format = "contiguous";
  GraphMode graph = {};
  bool own_kernels = true;

  // Debug
  FastDevRun fast_dev_run = {};
  BatchLimit limit_train_batches = {};
  BatchLimit limit_val_batches = {};
  BatchLimit limit_test_batches = {};
  BatchLimit limit_predict_batches = {};
  BatchLimit overfit_batches = 0.0;
  bool detect_anomaly = false;
  bool barebones = false;

  // Validation
  CheckInterval val_check_interval = {};
  std::optional<int64_t> check_val_every_n_epoch = 1;
  int64_t num_sanity_val_steps = 2;
  bool inference_mode = true;

  // Optimisation
  AdapterOptions adapters = {};                ///< that are added to the module
  Spec<optim::NamedOptimizer> optimizer = {};  ///< for modules that do not override configure_optimizers
  SchedulerConfig scheduler = {};              ///< of that optimizer
  /// Batches an optimizer step, also from which epoch on: {{0, 8}, {4, 2}}; the last window holds what is left.
  optim::AccumulationSchedule accumulate_grad_batches = 1;
  bool weigh_losses = true;  ///< false: every batch of every rank counts the same in an optimizer step
  std::optional<double> gradient_clip_val = {};
  std::string gradient_clip_algorithm = "norm";

  // Input and output
  std::vector<Spec<Callback>> callbacks = {};
  LoggerSpecs logger = {};
  int64_t log_every_n_steps = 50;
  bool enable_checkpointing = true;
  bool enable_progress_bar = true;
  bool enable_model_summary = true;
  Spec<Profiler> profiler = {};
  std::string default_root_dir = "levin_logs";
  std::string run_dir = {};
  LoadWeightsOptions init_from = {};  ///< without a path: the weights that the module has

  // Data and reproducibility
  bool use_distributed_sampler = true;
  int64_t reload_dataloaders_every_n_epochs = 0;
  Determinism deterministic = {};
  std::optional<bool> benchmark = {};

  // Memory
  ActivationCheckpointingOptions activation_checkpointing = {};

  static void describe(Schema<TrainerOptions>& schema);
};

}  // namespace levin
