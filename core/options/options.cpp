#include <levin/core/options/options.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/precision/precision.h>

namespace levin {
namespace {

bool is_positive(const CheckInterval& interval) {
  if (const auto* batches = std::get_if<int64_t>(&interval.value())) return *batches >= 1;
  if (const auto* fraction = std::get_if<double>(&interval.value())) return *fraction > 0 && *fraction <= 1;
  return std::get<std::chrono::seconds>(interval.value()).count() > 0;
}

void describe_duration(Schema<TrainerOptions>& schema) {
  using Options = TrainerOptions;
  schema
      .field("max_epochs", &Options::max_epochs,
             "epochs to train; -1 without end; 1000 when max_steps and max_time are unset too")
      .at_least(-1);
  schema.field("min_epochs", &Options::min_epochs, "epochs before a callback may stop training").at_least(0);
  schema.field("max_steps", &Options::max_steps, "optimizer steps to train; -1 without end").at_least(-1);
  schema.field("min_steps", &Options::min_steps, "optimizer steps before a callback may stop training").at_least(0);
  schema.field("max_time", &Options::max_time, "training time after which training ends")
      .require("longer than 00:00:00:00", [](const TimeLimit& limit) { return limit.seconds().count() > 0; });
  schema.field("handle_signals", &Options::handle_signals,
               "end training after the step on SIGINT and SIGTERM; false: keep the program's handlers");
}

void describe_hardware(Schema<TrainerOptions>& schema) {
  using Options = TrainerOptions;
  schema
      .field("accelerator", &Options::accelerator,
             "kind of device: cpu, cuda (or gpu), or one that the program adds; auto: the first that has devices")
      .require("auto, cpu, cuda, gpu, or the name of an accelerator that the program adds",
               [](const std::string& name) {
                 // Of tpu the devices are refused, with the reason.
                 return name == "auto" || name == "gpu" || name == "tpu" ||
                        AcceleratorRegistry::instance().find(name) != nullptr;
               });
  schema.field("devices", &Options::devices,
               "number (2) or indices ([1, 3] or \"1,3\") of devices; -1: all; auto: all GPUs or the CPU");
  schema.field("gpus", &Options::gpus, "older spelling of devices: 3: the first three GPUs; \"3\": GPU 3; 0: the CPU");
  schema.field("auto_select_gpus", &Options::auto_select_gpus,
               "choose GPUs without other processes, for a number of devices");
  schema.field("num_nodes", &Options::num_nodes, "hosts").at_least(1).at_most(100'000);
  schema.field("strategy", &Options::strategy, "how ranks cooperate: a name, or {pipeline: 2, shard: auto}");
  schema.field("precision", &Options::precision, "number format");
  schema.field("sync_batchnorm", &Options::sync_batchnorm, "compute BatchNorm's statistics over all ranks");
  schema
      .field("float32_matmul_precision", &Options::float32_matmul_precision,
             "precision of float32 matrix products: highest, high (TF32 on GPUs) or medium (bfloat16); null: "
             "LibTorch's setting")
      .one_of({"highest", "high", "medium"});
  schema
      .field("memory_format", &Options::memory_format,
             "layout of images, volumes and convolutions' weights: contiguous or channels_last")
      .one_of({"contiguous", "channels_last"});
  schema
      .field("graph", &Options::graph,
             "replay of recorded training steps; true: where possible; auto: where faster; required: or fail")
      .formerly("cuda_graph");
  schema.field("own_kernels", &Options::own_kernels, "Levin's faster CPU kernels that give the bits of LibTorch's");
}

void describe_debugging(Schema<TrainerOptions>& schema) {
  using Options = TrainerOptions;
  const auto valid_limit = [](const BatchLimit& limit) {
    return limit.is_count() ? limit.count() >= 0 : limit.fraction() >= 0 && limit.fraction() <= 1;
  };
  constexpr const char* kLimit = "a number of batches from 0 or a fraction from 0.0 to 1.0";
  schema
      .field("fast_dev_run", &Options::fast_dev_run,
             "one epoch of n batches (true: one), without sanity check, loggers and checkpoints")
      .require("at least 0", [](const FastDevRun& run) { return run.batches() >= 0; });
  schema
      .field("limit_train_batches", &Options::limit_train_batches,
             "training batches an epoch: 1 is one batch, 1.0 all of them")
      .require(kLimit, valid_limit);
  schema.field("limit_val_batches", &Options::limit_val_batches, "validation batches a loader")
      .require(kLimit, valid_limit);
  schema.field("limit_test_batches", &Options::limit_test_batches, "test batches a loader")
      .require(kLimit, valid_limit);
  schema.field("limit_predict_batches", &Options::limit_predict_batches, "prediction batches a loader")
      .require(kLimit, valid_limit);
  schema
      .field("overfit_batches", &Options::overfit_batches,
             "training and validation batches to overfit, in order; 0.0: off")
      .require(kLimit, valid_limit);
  schema.field("detect_anomaly", &Options::detect_anomaly,
               "check of backward for NaN, naming operation and unit; metrics check labels on every device");
  schema.field("barebones", &Options::barebones, "disable all that costs time, log() included, to measure the loop");
}

void describe_validation(Schema<TrainerOptions>& schema) {
  using Options = TrainerOptions;
  schema
      .field("val_check_interval", &Options::val_check_interval,
             "fraction of the epoch, batches, or time between validations")
      .require("at least 1 batch, a fraction above 0.0 and at most 1.0, or a time above zero", is_positive);
  schema
      .field("check_val_every_n_epoch", &Options::check_val_every_n_epoch,
             "epochs between validations; null: val_check_interval counts batches across epochs")
      .at_least(1);
  schema
      .field("num_sanity_val_steps", &Options::num_sanity_val_steps,
             "validation batches before training starts; -1 all, 0 none")
      .at_least(-1);
  schema.field("inference_mode", &Options::inference_mode, "evaluate under InferenceMode instead of no_grad");
}

void describe_optimization(Schema<TrainerOptions>& schema) {
  using Options = TrainerOptions;
  schema.field(
      "adapters", &Options::adapters,
      "adapters to train instead of the weights, also top level: {name: lora, rank: 8, targets: [\"*.q_proj\"]}");
  schema.field("optimizer", &Options::optimizer,
               "optimizer of modules without configure_optimizers, also top level: {name: adamw, lr: 1e-3, groups: "
               "[{pattern: \"*.bias\", weight_decay: 0}]}");
  schema.field("scheduler", &Options::scheduler,
               "schedule of its learning rate, also top level: {name: cosine, warmup_steps: 100}; null: none");
  schema
      .field("accumulate_grad_batches", &Options::accumulate_grad_batches,
             "batches per optimizer step; by epoch: {0: 8, 4: 2}")
      .require("at least 1", [](const auto& schedule) { return schedule.fewest_batches() >= 1; })
      .require("given for epochs of at least 0", [](const auto& schedule) { return schedule.first_epoch() >= 0; });
  schema.field("weigh_losses", &Options::weigh_losses,
               "step by the mean over all examples; false: by the mean of the batches' losses");
  schema
      .field("gradient_clip_val", &Options::gradient_clip_val,
             "largest norm, value or ratio of gradients; null or 0: any")
      .at_least(0);
  schema
      .field("gradient_clip_algorithm", &Options::gradient_clip_algorithm,
             "unit of clipping; norm: all gradients of an optimizer; value: each element; adaptive: each output, "
             "relative to its weights")
      .one_of({"norm", "value", "adaptive"});
}

void describe_output(Schema<TrainerOptions>& schema) {
  using Options = TrainerOptions;
  schema.field("callbacks", &Options::callbacks,
               "callbacks beside the default ones, each a name or {NAME: {option: value}}");
  schema.field("logger", &Options::logger, "true (csv and tensorboard), false (none), or which");
  schema.field("log_every_n_steps", &Options::log_every_n_steps, "optimizer steps between two logging boundaries")
      .at_least(1);
  schema.field("enable_checkpointing", &Options::enable_checkpointing,
               "a model_checkpoint callback where none is given");
  schema.field("enable_progress_bar", &Options::enable_progress_bar, "a progress_bar callback");
  schema.field("enable_model_summary", &Options::enable_model_summary, "a model_summary callback");
  schema.field("profiler", &Options::profiler, "profiler: simple, pytorch or nvtx; null: none");
  schema.field("default_root_dir", &Options::default_root_dir, "where runs write, each to a folder version_N")
      .require("the path of a folder", [](const std::string& path) { return !path.empty(); });
  schema.field("run_dir", &Options::run_dir,
               "folder of this run, also when it is resumed; empty: a new version_N below default_root_dir");
  schema.field("init_from", &Options::init_from,
               "initial weights of a fresh fit (Levin, PyTorch, Lightning, Hugging Face): a path, or {path: PATH, "
               "rules: [...], strict: false}");
}

void describe_reproducibility(Schema<TrainerOptions>& schema) {
  using Options = TrainerOptions;
  schema.field("use_distributed_sampler", &Options::use_distributed_sampler,
               "divide training batches over the ranks; false: each rank reads the whole loader");
  schema
      .field("reload_dataloaders_every_n_epochs", &Options::reload_dataloaders_every_n_epochs,
             "epochs between requests for new loaders; 0: never")
      .at_least(0);
  schema.field("deterministic", &Options::deterministic,
               "deterministic algorithms only; true: throw where there is none; warn: warn");
  schema.field("benchmark", &Options::benchmark,
               "let cuDNN choose algorithms by measurement; null: LibTorch's setting");
}

void describe_memory(Schema<TrainerOptions>& schema) {
  schema.field("activation_checkpointing", &TrainerOptions::activation_checkpointing,
               "units to recompute in backward: types and paths ([Block, encoder.*]), or {units: [Block], every: 2, "
               "offload: true}");
}

}  // namespace

std::vector<Spec<Logger>> LoggerSpecs::resolve() const {
  if (!enabled_) return {};
  if (specs_) return *specs_;
  return {Spec<Logger>("csv"), Spec<Logger>("tensorboard")};
}

LoggerSpecs ConfigCodec<LoggerSpecs>::parse(const Config& node, const std::string& path) {
  if (node.is_null()) return {};
  if (node.is_sequence()) return LoggerSpecs(ConfigCodec<std::vector<Spec<Logger>>>::parse(node, path));
  if (node.is_scalar() && !node.quoted()) {
    if (node.text() == "true") return true;
    if (node.text() == "false") return false;
  }
  return LoggerSpecs(std::vector<Spec<Logger>>{ConfigCodec<Spec<Logger>>::parse(node, path)});
}

Config ConfigCodec<LoggerSpecs>::dump(const LoggerSpecs& value) {
  if (value.named()) return ConfigCodec<std::vector<Spec<Logger>>>::dump(value.specs());
  return ConfigCodec<bool>::dump(value.enabled());
}

void TrainerOptions::describe(Schema<TrainerOptions>& schema) {
  describe_duration(schema);
  describe_hardware(schema);
  describe_debugging(schema);
  describe_validation(schema);
  describe_optimization(schema);
  describe_output(schema);
  describe_reproducibility(schema);
  describe_memory(schema);
}

}  // namespace levin
