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
  schema.field("max_time", &Options::max_time, "training ends after this time")
      .require("longer than 00:00:00:00", [](const TimeLimit& limit) { return limit.seconds().count() > 0; });
  schema.field("handle_signals", &Options::handle_signals,
               "SIGINT and SIGTERM end training after the present step; false: the program's handlers stay");
}

void describe_hardware(Schema<TrainerOptions>& schema) {
  using Options = TrainerOptions;
  schema
      .field(
          "accelerator", &Options::accelerator,
          "what computes: cpu, cuda (or gpu), or one that the program adds; auto: the first of them that has devices")
      .require("auto, cpu, cuda, gpu, or the name of an accelerator that the program adds",
               [](const std::string& name) {
                 // Of tpu the devices are refused, with the reason.
                 return name == "auto" || name == "gpu" || name == "tpu" ||
                        AcceleratorRegistry::instance().find(name) != nullptr;
               });
  schema.field("devices", &Options::devices,
               "how many devices (2), or which ([1, 3] or \"1,3\"); -1 is all, auto all GPUs or the one CPU");
  schema.field("gpus", &Options::gpus,
               "older spelling of devices: 3 is the first three GPUs, \"3\" is GPU 3, 0 the CPU");
  schema.field("auto_select_gpus", &Options::auto_select_gpus,
               "take GPUs that no other process computes on, where a count of them is given");
  schema.field("num_nodes", &Options::num_nodes, "hosts").at_least(1).at_most(100'000);
  schema.field("strategy", &Options::strategy, "how ranks work together: a name, or {pipeline: 2, shard: auto}");
  schema.field("precision", &Options::precision, "number format");
  schema.field("sync_batchnorm", &Options::sync_batchnorm, "BatchNorm takes its statistics over all ranks");
  schema
      .field(
          "float32_matmul_precision", &Options::float32_matmul_precision,
          "how products of float32 matrices are computed: highest, high (TF32 on GPUs) or medium (bfloat16); null: as "
          "LibTorch is set")
      .one_of({"highest", "high", "medium"});
  schema
      .field("memory_format", &Options::memory_format,
             "of images, volumes and the weights of their convolutions: contiguous or channels_last")
      .one_of({"contiguous", "channels_last"});
  schema
      .field(
          "graph", &Options::graph,
          "replay training steps from a recording: true where that is possible, auto where it is faster too, required "
          "or fail")
      .formerly("cuda_graph");
  schema.field("own_kernels", &Options::own_kernels,
               "Levin's kernels in the place of slower ones of LibTorch's for the CPU that give the same bits");
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
             "train on the same few batches, in order, and validate on as many of the validation loader; 0.0 is off")
      .require(kLimit, valid_limit);
  schema.field("detect_anomaly", &Options::detect_anomaly,
               "autograd checks for NaN and names the operation and its unit; metrics look at labels on every device");
  schema.field("barebones", &Options::barebones,
               "everything off that costs time, log() included, to measure the bare loop");
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
      "what is trained instead of the module's weights, also as `adapters` of the top level: {name: lora, rank: "
      "8, targets: [\"*.q_proj\"]}");
  schema.field(
      "optimizer", &Options::optimizer,
      "what trains a module that does not override configure_optimizers, also as `optimizer` of the top level: "
      "{name: adamw, lr: 1e-3, groups: [{pattern: \"*.bias\", weight_decay: 0}]}");
  schema.field("scheduler", &Options::scheduler,
               "the schedule of its learning rate, also as `scheduler` of the top level: {name: cosine, warmup_steps: "
               "100}; null: none");
  schema
      .field("accumulate_grad_batches", &Options::accumulate_grad_batches,
             "batches an optimizer step, also by epoch ({0: 8, 4: 2}); the last window of an epoch has those that are "
             "left")
      .require("at least 1", [](const auto& schedule) { return schedule.fewest_batches() >= 1; })
      .require("given for epochs of at least 0", [](const auto& schedule) { return schedule.first_epoch() >= 0; });
  schema.field("weigh_losses", &Options::weigh_losses,
               "an optimizer step is that of the mean over all examples (or what training_step's weight counts) of its "
               "batches and ranks; false: of the mean of their losses, whatever they hold");
  schema
      .field("gradient_clip_val", &Options::gradient_clip_val,
             "largest norm, value or ratio of gradients; null or 0: any")
      .at_least(0);
  schema
      .field("gradient_clip_algorithm", &Options::gradient_clip_algorithm,
             "norm: of all gradients of an optimizer together; value: of each element; adaptive: of each output, in "
             "proportion to its weights")
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
  schema.field("profiler", &Options::profiler,
               "what measures where time goes: simple, pytorch or nvtx; null: nothing does");
  schema.field("default_root_dir", &Options::default_root_dir, "where runs write, each to a folder version_N")
      .require("the path of a folder", [](const std::string& path) { return !path.empty(); });
  schema.field("run_dir", &Options::run_dir,
               "the folder of this run, in which it also goes on when it is resumed; empty: a new version_N below "
               "default_root_dir");
  schema.field(
      "init_from", &Options::init_from,
      "weights that a fresh fit starts from, of Levin, PyTorch, Lightning or Hugging Face: a file or folder, or "
      "{path: PATH, rules: [...], strict: false}");
}

void describe_reproducibility(Schema<TrainerOptions>& schema) {
  using Options = TrainerOptions;
  schema.field("use_distributed_sampler", &Options::use_distributed_sampler,
               "divide the batches of training over the ranks; false: each rank reads the loader as it is");
  schema
      .field("reload_dataloaders_every_n_epochs", &Options::reload_dataloaders_every_n_epochs,
             "ask for new loaders every n epochs; 0 never")
      .at_least(0);
  schema.field("deterministic", &Options::deterministic,
               "deterministic algorithms only: true throws where there is none, warn says so");
  schema.field("benchmark", &Options::benchmark, "cuDNN measures which algorithm is fastest; null leaves it as it is");
}

void describe_memory(Schema<TrainerOptions>& schema) {
  schema.field(
      "activation_checkpointing", &TrainerOptions::activation_checkpointing,
      "units that are recomputed in backward: types and paths ([Block, encoder.*]), or {units: [Block], every: "
      "2, offload: true}");
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
