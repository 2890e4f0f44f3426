#include <levin/core/options/resolved_options.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/devices/gpu_selection.h>
#include <levin/core/interfaces/checkpointer.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/options/capable_strategies.h>
#include <levin/core/options/compatibility_options.h>
#include <levin/core/options/mesh_strategy.h>
#include <levin/core/options/rank_count.h>
#include <levin/core/options/registries.h>
#include <levin/core/precision/precision.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

void resolve_duration(const TrainerOptions& options, ResolvedOptions& resolved) {
  const auto limit = [](int64_t value, const char* name) -> std::optional<int64_t> {
    if (value < -1)
      throw ConfigError(fmt::format("trainer.{} must be -1 (without end) or at least 0; got {}", name, value));
    if (value == -1) return std::nullopt;
    return value;
  };
  resolved.max_steps = limit(options.max_steps, "max_steps");
  if (options.max_epochs) {
    resolved.max_epochs = limit(*options.max_epochs, "max_epochs");
  } else if (!resolved.max_steps && !options.max_time) {
    resolved.max_epochs = 1000;
  }
  resolved.min_epochs = options.min_epochs.value_or(0);
  resolved.min_steps = options.min_steps.value_or(0);
  if (resolved.max_epochs && resolved.min_epochs > *resolved.max_epochs)
    throw ConfigError(fmt::format("trainer.min_epochs is {} and trainer.max_epochs is {}; hint: raise max_epochs",
                                  resolved.min_epochs, *resolved.max_epochs));
  if (resolved.max_steps && resolved.min_steps > *resolved.max_steps)
    throw ConfigError(fmt::format("trainer.min_steps is {} and trainer.max_steps is {}; hint: raise max_steps",
                                  resolved.min_steps, *resolved.max_steps));
  if (options.max_time) resolved.max_time = options.max_time->seconds();
}

void resolve_batches(const TrainerOptions& options, ResolvedOptions& resolved) {
  resolved.limit_train = options.limit_train_batches;
  resolved.limit_val = options.limit_val_batches;
  resolved.limit_test = options.limit_test_batches;
  resolved.limit_predict = options.limit_predict_batches;
  resolved.sanity_steps = options.num_sanity_val_steps;
  if (!options.overfit_batches.is_zero()) {
    resolved.overfit = true;
    resolved.limit_train = options.overfit_batches;
    resolved.limit_val = options.overfit_batches;
    resolved.sanity_steps = 0;
  }
  if (const int64_t batches = options.fast_dev_run.batches(); batches > 0) {
    resolved.limit_train = resolved.limit_val = resolved.limit_test = resolved.limit_predict = BatchLimit(batches);
    resolved.max_epochs = 1;
    resolved.max_steps = batches;
    resolved.min_epochs = resolved.min_steps = 0;
    resolved.sanity_steps = 0;
    // Every hook has its turn.
    resolved.given.check_val_every_n_epoch = 1;
    resolved.given.val_check_interval = 1.0;
  }
  const bool by_fraction = std::holds_alternative<double>(options.val_check_interval.value());
  if (!options.check_val_every_n_epoch && by_fraction)
    throw ConfigError(
        "trainer.check_val_every_n_epoch is null, so trainer.val_check_interval must be a number of batches "
        "(an integer) or a time; got a fraction of the epoch");
}

/// GPUs that are free. All ranks of a host must get the same, which those that a launcher has started one by one could
/// not agree on.
std::vector<int64_t> free_gpus(int64_t count) {
  const auto environment = registries().detect_environment();
  const bool started_by_levin = environment == nullptr || environment->name() == "Levin";
  if (!started_by_levin && environment->local_world_size() > 1)
    throw ConfigError(
        fmt::format("trainer.auto_select_gpus selects for ranks that the trainer starts, but {} has started {} on this "
                    "host; hint: let the launcher choose the GPUs, or name them: trainer.devices: [0, 2]",
                    environment->name(), environment->local_world_size()));
  return GpuSelection::of_process().select(count, AcceleratorRegistry::instance().find("cuda")->pci_addresses());
}

void resolve_devices_and_strategy(const TrainerOptions& options, ResolvedOptions& resolved) {
  resolved.devices = resolve_devices(options.accelerator, options.devices, options.gpus, count_devices,
                                     options.auto_select_gpus ? GpuChoice(free_gpus) : GpuChoice());
  const Config& devices = options.devices.config();
  resolved.devices_are_given =
      !options.gpus.config().is_null() || !(devices.is_null() || (devices.is_scalar() && devices.text() == "auto"));
  resolved.strategy = make_strategy(options, count_ranks(std::ssize(resolved.devices), options.num_nodes));
  const StrategyCapabilities can = resolved.strategy->capabilities();
  if (!resolved.devices_are_given && !can.several_devices)
    resolved.devices.erase(resolved.devices.begin() + 1, resolved.devices.end());
  if (resolved.devices.size() > 1 && !can.several_devices)
    throw ConfigError(
        fmt::format("trainer.devices asks for {} devices, but strategy '{}' runs on one; valid: devices: 1; "
                    "hint: strategies that use several are {}",
                    resolved.devices.size(), resolved.strategy->name(),
                    capable_strategies(&StrategyCapabilities::several_devices)));
  if (options.num_nodes > 1 && !can.several_nodes)
    throw ConfigError(fmt::format(
        "trainer.num_nodes is {}, but strategy '{}' runs on one host; valid: num_nodes: 1; "
        "hint: strategies that use several are {}",
        options.num_nodes, resolved.strategy->name(), capable_strategies(&StrategyCapabilities::several_nodes)));

  Spec<Precision> precision = options.precision;
  if (precision.object() == nullptr) {
    const std::string name = precision.name("trainer.precision", "precision");
    if (const std::string present = present_precision(name); present != name)
      precision = Spec<Precision>(Config::scalar(present, false, precision.config().origin()));
  }
  resolved.precision = precision.resolve(registries().precisions, "trainer.precision");
  if (!options.optimizer.empty()) {
    resolved.optimizer = options.optimizer.resolve(registries().optimizers, "trainer.optimizer");
    resolved.optimizer->resolve_parts(registries().optimizers, "trainer.optimizer");
  } else if (options.scheduler) {
    throw ConfigError(
        "trainer.scheduler is given and trainer.optimizer is not; hint: name the optimizer too, or give the scheduler "
        "in "
        "configure_optimizers");
  }
  if (resolved.precision->is_half() && !can.half_precision)
    throw ConfigError(
        fmt::format("trainer.precision is '{}', which trainer.strategy '{}' does not support; valid: 32-true, 64-true; "
                    "hint: strategies that support it are {}",
                    resolved.precision->name(), resolved.strategy->name(),
                    capable_strategies(&StrategyCapabilities::half_precision)));
}

bool is_named(const Callback& callback, const char* registered_name) {
  const auto* item = registries().callbacks.find(registered_name);
  return item != nullptr && item->is_instance(callback);
}

void resolve_callbacks(const TrainerOptions& options, ResolvedOptions& resolved) {
  const bool fast_dev_run = options.fast_dev_run.batches() > 0;
  for (size_t i = 0; i < options.callbacks.size(); ++i) {
    auto callback = options.callbacks[i].resolve(registries().callbacks, fmt::format("trainer.callbacks[{}]", i));
    if (callback == nullptr) throw ConfigError(fmt::format("trainer.callbacks[{}] is null", i));
    const bool checkpointer = dynamic_cast<Checkpointer*>(callback.get()) != nullptr;
    if (fast_dev_run && checkpointer) continue;
    resolved.callbacks.push_back(std::move(callback));
  }
  struct Default {
    const char* name;
    bool enabled;
    const char* option;
  };
  const Default defaults[] = {
      {"progress_bar", options.enable_progress_bar, "enable_progress_bar"},
      {"model_summary", options.enable_model_summary, "enable_model_summary"},
      {"model_checkpoint", options.enable_checkpointing, "enable_checkpointing"},
  };
  for (const auto& item : defaults) {
    const bool is_checkpoint = std::string_view(item.name) == "model_checkpoint";
    const bool given = std::any_of(resolved.callbacks.begin(), resolved.callbacks.end(), [&](const auto& callback) {
      return is_checkpoint ? dynamic_cast<Checkpointer*>(callback.get()) != nullptr : is_named(*callback, item.name);
    });
    const bool enabled = item.enabled && !options.barebones;
    if (given && !enabled)
      throw ConfigError(fmt::format("trainer.callbacks has a {} and trainer.{} is false; hint: leave one of them out",
                                    item.name, options.barebones ? "barebones is true, so that" : item.option));
    if (!given && enabled && !(is_checkpoint && fast_dev_run))
      resolved.callbacks.push_back(registries().callbacks.make(item.name, Config::null(), item.name));
  }

  if (options.barebones && options.logger.named() && !options.logger.specs().empty())
    throw ConfigError("trainer.logger names loggers and trainer.barebones is true; hint: leave one of them out");
  if (!fast_dev_run && !options.barebones) {
    const auto specs = options.logger.resolve();
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].object() == nullptr) refuse_ended_logger(specs[i].config(), registries().loggers);
      resolved.loggers.push_back(specs[i].resolve(registries().loggers, fmt::format("trainer.logger[{}]", i)));
    }
  }
  const bool wants_graph =
      std::ranges::any_of(resolved.loggers, [](const auto& logger) { return logger->wants_graph(); });
  const bool has_graph_callback =
      std::ranges::any_of(resolved.callbacks, [](const auto& callback) { return is_named(*callback, "model_graph"); });
  if (wants_graph && !has_graph_callback)
    resolved.callbacks.push_back(registries().callbacks.make("model_graph", Config::null(), "model_graph"));
  resolved.run_folder = run_folder(options, resolved.loggers);
  refuse_shared_folders(options, resolved.loggers, resolved.run_folder);
  const bool checkpoints = std::any_of(resolved.callbacks.begin(), resolved.callbacks.end(), [](const auto& callback) {
    return dynamic_cast<Checkpointer*>(callback.get()) != nullptr;
  });
  resolved.writes_files = checkpoints || !resolved.loggers.empty();
}

void resolve_profiler(const TrainerOptions& options, ResolvedOptions& resolved) {
  if (options.profiler.empty()) return;
  if (options.barebones)
    throw ConfigError("trainer.barebones is true and trainer.profiler is given; hint: leave one of them out");
  resolved.profiler = options.profiler.resolve(registries().profilers, "trainer.profiler");
  resolved.writes_files = true;
}

}  // namespace

std::shared_ptr<Strategy> make_strategy(const TrainerOptions& options, int64_t ranks) {
  Spec<Strategy> strategy = options.strategy;
  if (strategy.object() == nullptr) refuse_misspelt_mesh(strategy.config());
  if (strategy.object() == nullptr && is_mesh(strategy.config()))
    strategy = Spec<Strategy>(strategy_of_mesh(strategy.config(), ranks));
  if (strategy.empty() || strategy.name("trainer.strategy", "strategy") == "auto") {
    if (strategy.config().is_mapping() && strategy.config().find("memory") != nullptr)
      throw ConfigError(
          "trainer.strategy is auto with a memory limit, which the trainer cannot choose for: it has no module yet; "
          "hint: options = choose_strategy(options, module, data) before the trainer is made, as the command line "
          "does");
    strategy = Spec<Strategy>(ranks > 1 ? "ddp" : "single_device");
  }
  if (strategy.object() == nullptr) strategy = Spec<Strategy>(present_strategy(strategy.config()));
  return strategy.resolve(registries().strategies, "trainer.strategy");
}

ResolvedOptions resolve(const TrainerOptions& options) {
  schema_of<TrainerOptions>().validate(options, "trainer");
  if (options.barebones && options.detect_anomaly)
    throw ConfigError("trainer.barebones and trainer.detect_anomaly are both true; hint: leave one of them out");
  if (options.barebones && options.fast_dev_run.batches() > 0)
    throw ConfigError("trainer.barebones and trainer.fast_dev_run are both on; hint: leave one of them out");
  ResolvedOptions resolved;
  resolved.given = options;
  resolved.config = schema_of<TrainerOptions>().dump(options);
  resolve_duration(options, resolved);
  resolve_batches(options, resolved);
  if (options.barebones) resolved.sanity_steps = 0;
  resolved.clip_algorithm = options.gradient_clip_algorithm == "value"      ? ClipAlgorithm::kValue
                            : options.gradient_clip_algorithm == "adaptive" ? ClipAlgorithm::kAdaptive
                                                                            : ClipAlgorithm::kNorm;
  resolved.clip_value = options.gradient_clip_val.value_or(0);
  resolved.channels_last = options.memory_format == "channels_last";
  resolve_devices_and_strategy(options, resolved);
  resolve_callbacks(options, resolved);
  resolve_profiler(options, resolved);
  return resolved;
}

}  // namespace levin
