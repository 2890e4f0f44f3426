#pragma once

#include <levin/core/base/spec.h>
#include <levin/core/devices/device_spec.h>
#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/optim/accumulation_schedule.h>
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

/// Everything that users may set on a trainer, with its default. What has been worked out from it is ResolvedOptions.
struct TrainerOptions {
  // Duration
  /// Epochs to train; -1 without end; 1000 when max_steps and max_time are unset too
  std::optional<int64_t> max_epochs = {};
  std::optional<int64_t> min_epochs = {};  ///< epochs before a callback may stop training
  int64_t max_steps = -1;                  ///< optimizer steps to train; -1 without end
  std::optional<int64_t> min_steps = {};   ///< optimizer steps before a callback may stop training
  std::optional<TimeLimit> max_time = {};  ///< training ends after this time

  // Hardware
  std::string accelerator = "auto";                          ///< auto, cpu, cuda or gpu
  DeviceSpec devices = {};                                   ///< how many devices, or which
  GpuSpec gpus = {};                                         ///< older spelling of devices, with its own table
  bool auto_select_gpus = false;                             ///< a count of GPUs is of those that nobody else uses
  int64_t num_nodes = 1;                                     ///< hosts
  Spec<Strategy> strategy = "auto";                          ///< how devices and ranks work together
  Spec<Precision> precision = "32-true";                     ///< number format
  bool sync_batchnorm = false;                               ///< BatchNorm takes its statistics over all ranks
  std::optional<std::string> float32_matmul_precision = {};  ///< highest, high (TF32) or medium (bfloat16)
  std::string memory_format = "contiguous";                  ///< of images and volumes: contiguous or channels_last
  bool cuda_graph = false;                                   ///< replay training steps from recorded CUDA graphs

  // Debug
  FastDevRun fast_dev_run = {};           ///< one epoch of n batches, without sanity check, loggers and checkpoints
  BatchLimit limit_train_batches = {};    ///< training batches an epoch
  BatchLimit limit_val_batches = {};      ///< validation batches a loader
  BatchLimit limit_test_batches = {};     ///< test batches a loader
  BatchLimit limit_predict_batches = {};  ///< prediction batches a loader
  BatchLimit overfit_batches = 0.0;       ///< train on the same few batches, in order, and validate on as many
  bool detect_anomaly = false;            ///< autograd checks for NaN and names the operation and its unit
  bool barebones = false;                 ///< everything off that costs time, to measure the bare loop

  // Validation
  CheckInterval val_check_interval = {};               ///< fraction of the epoch, batches, or time between validations
  std::optional<int64_t> check_val_every_n_epoch = 1;  ///< null: val_check_interval counts batches across epochs
  int64_t num_sanity_val_steps = 2;                    ///< validation batches before training starts; -1 all
  bool inference_mode = true;                          ///< evaluate under InferenceMode instead of no_grad

  // Optimisation
  /// Batches an optimizer step, also from which epoch on: {{0, 8}, {4, 2}}; the last window holds what is left.
  optim::AccumulationSchedule accumulate_grad_batches = 1;
  std::optional<double> gradient_clip_val = {};  ///< clip gradients to this norm, value or ratio; 0: do not clip
  std::string gradient_clip_algorithm = "norm";  ///< norm, value or adaptive

  // Input and output
  std::vector<Spec<Callback>> callbacks = {};   ///< callbacks beside the default ones
  LoggerSpecs logger = {};                      ///< true (csv, tensorboard), false, or which
  int64_t log_every_n_steps = 50;               ///< optimizer steps between two logging boundaries
  bool enable_checkpointing = true;             ///< a model_checkpoint callback where none is given
  bool enable_progress_bar = true;              ///< a progress_bar callback
  bool enable_model_summary = true;             ///< a model_summary callback
  Spec<Profiler> profiler = {};                 ///< what measures where time goes; empty: nothing
  std::string default_root_dir = "levin_logs";  ///< where runs write
  std::string run_dir = {};                     ///< the run's own folder; empty: a new version_N below default_root_dir

  // Data and reproducibility
  bool use_distributed_sampler = true;            ///< divide the batches of training over the ranks
  int64_t reload_dataloaders_every_n_epochs = 0;  ///< ask for new loaders every n epochs; 0 never
  Determinism deterministic = {};                 ///< deterministic algorithms only
  std::optional<bool> benchmark = {};             ///< cuDNN measures which algorithm is fastest

  // Memory
  ActivationCheckpointingOptions activation_checkpointing = {};  ///< units that are recomputed in backward

  static void describe(Schema<TrainerOptions>& schema);
};

}  // namespace levin
