#include <levin/core/options/compatibility_options.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/spec.h>
#include <levin/core/devices/device_spec.h>
#include <levin/core/interfaces/logger.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace levin {
namespace {

/// What older configurations call a strategy, and what it is called now. `ddp_cpu` was ddp on the CPU.
struct OlderStrategy {
  const char* older;
  const char* present;
  bool on_cpu;
};
constexpr std::array<OlderStrategy, 8> kOlderStrategies = {{
    {"dp", "dp", false},
    {"ddp", "ddp", false},
    {"ddp_spawn", "ddp_spawn", false},
    {"ddp2", "ddp2", false},
    {"ddp_cpu", "ddp", true},
    {"horovod", "horovod", false},
    {"ddp_sharded", "ddp_sharded", false},
    {"rpc_sequential", "rpc_sequential", false},
}};

const OlderStrategy* find_older(const Config& node) {
  if (!node.is_scalar()) return nullptr;
  for (const auto& item : kOlderStrategies)
    if (node.text() == item.older) return &item;
  return nullptr;
}

void note(const Origin& origin, const std::string& older, const std::string& present) {
  const std::string place = origin.prefix();
  log::rank_zero_info(fmt::format("{}{} is an older spelling of {}", place, older, present));
}

bool is_given(const Config* node) {
  return node != nullptr && !node->is_null() && !(node->is_scalar() && node->text() == "auto");
}

/// `key: ddp` as `strategy: ddp`; `key` goes.
void move_strategy(Config& trainer, const std::string& key, const OlderStrategy& older) {
  const Config value = *trainer.find(key);
  const Config* strategy = trainer.find("strategy");
  if (is_given(strategy) && !(strategy->is_scalar() && strategy->text() == older.present))
    throw ConfigError(
        fmt::format("trainer.{}: {} is an older spelling of strategy: {}, and trainer.strategy is given "
                    "as well; hint: leave {} out",
                    key, older.older, older.present, key));
  note(value.origin(), fmt::format("{}: {}", key, older.older), fmt::format("strategy: {}", older.present));
  trainer.erase(key);
  trainer.set("strategy", Config::scalar(older.present, false, value.origin()));
  if (older.on_cpu) trainer.set("accelerator", Config::scalar("cpu", false, value.origin()));
}

/// Other names of `sharded`, each with a stage.
struct ShardedName {
  const char* name;
  const char* present;
  const char* stage;
};
constexpr std::array<ShardedName, 3> kShardedNames = {
    {{"ddp_sharded", "sharded", "2"}, {"ddp_sharded_spawn", "sharded_spawn", "2"}, {"fsdp", "sharded", "3"}}};

/// What options of `pipeline` were called.
struct PipelineOption {
  const char* older;
  const char* present;
};
constexpr std::array<PipelineOption, 3> kPipelineOptions = {
    {{"microbatches", "micro_batches"}, {"sequential_module", "sequential"}, {"balance_mode", "balance_by"}}};

/// balance_by_size was that of parameters and activations.
Config present_balance_mode(const Config& mode) {
  const std::string text = mode.is_scalar() ? mode.text() : "";
  if (text != "balance_by_size" && text != "balance_by_time")
    throw ConfigError(
        fmt::format("trainer.strategy.balance_mode is not understood; got {}; valid: balance_by_size, balance_by_time",
                    mode.describe()));
  return Config::scalar(text == "balance_by_size" ? "memory" : "time", false, mode.origin());
}

/// `strategy` is one of `sequential`, as a mapping or as `name` alone.
Config present_pipeline(const Config& strategy, const Config& name) {
  Config present = strategy.is_mapping() ? strategy : Config::mapping(strategy.origin());
  present.set("name", Config::scalar("pipeline", false, name.origin()));
  for (const PipelineOption& option : kPipelineOptions) {
    const Config* older = present.find(option.older);
    if (older == nullptr) continue;
    if (present.find(option.present) != nullptr)
      throw ConfigError(
          fmt::format("trainer.strategy.{0} is an older spelling of {1}, which is given as well; hint: leave {0} out",
                      option.older, option.present));
    const Config value = option.older == std::string_view("balance_mode") ? present_balance_mode(*older) : *older;
    present.erase(option.older);
    present.set(option.present, value);
  }
  present.erase("pipelined_backward");
  const auto set_default = [&](const char* option, const char* value) {
    if (present.find(option) == nullptr) present.set(option, Config::scalar(value, false, name.origin()));
  };
  set_default("checkpoint", "except_last");
  set_default("balance_by", "memory");
  return present;
}

}  // namespace

Config present_strategy(const Config& strategy) {
  const Config* name = strategy.is_mapping() ? strategy.find("name") : &strategy;
  if (name == nullptr || !name->is_scalar()) return strategy;
  if (name->text() == "sequential" || name->text() == "rpc_sequential") return present_pipeline(strategy, *name);
  const auto* const found = std::find_if(kShardedNames.begin(), kShardedNames.end(),
                                         [&](const ShardedName& other) { return name->text() == other.name; });
  if (found == kShardedNames.end()) return strategy;
  Config present = strategy.is_mapping() ? strategy : Config::mapping(strategy.origin());
  present.set("name", Config::scalar(found->present, false, name->origin()));
  if (present.find("stage") == nullptr) present.set("stage", Config::scalar(found->stage, false, name->origin()));
  return present;
}

std::string present_precision(const std::string& name) {
  if (name == "64" || name == "32") return name + "-true";
  if (name == "16" || name == "bf16") return name + "-mixed";
  return name;
}

void refuse_ended_logger(const Config& member, const Registry<Logger>& loggers) {
  const Config name = detail::split_named_config(member, "trainer.logger", loggers.kind()).first;
  if (name.text() != "neptune" || loggers.find(name.text()) != nullptr) return;
  const std::string place = name.origin().prefix();
  throw ConfigError(fmt::format(
      "{}there is no logger 'neptune': the service ended on 5 March 2026; hint: take wandb, or mlflow for a server of "
      "your own; valid: {}",
      place, join(loggers.names())));
}

void translate_compatibility_options(Config& trainer) {
  if (!trainer.is_mapping()) return;
  if (const Config* cores = trainer.find("tpu_cores")) {
    if (!cores->is_null()) refuse_tpu("tpu_cores");
    trainer.erase("tpu_cores");
  }
  for (const char* key : {"accelerator", "distributed_backend", "plugins"}) {
    const Config* node = trainer.find(key);
    if (node == nullptr) continue;
    const Config& value = node->is_sequence() && node->items().size() == 1 ? node->items().front() : *node;
    const OlderStrategy* older = find_older(value);
    if (older == nullptr) continue;
    const Config flat = value;
    trainer.set(key, flat);
    move_strategy(trainer, key, *older);
  }
  if (const Config* older = trainer.find("replace_sampler_ddp")) {
    if (trainer.find("use_distributed_sampler") != nullptr)
      throw ConfigError(
          "trainer.replace_sampler_ddp is an older spelling of use_distributed_sampler, which is given as well; hint: "
          "leave replace_sampler_ddp out");
    note(older->origin(), "replace_sampler_ddp", "use_distributed_sampler");
    const Config value = *older;
    trainer.erase("replace_sampler_ddp");
    trainer.set("use_distributed_sampler", value);
  }
  if (const Config* precision = trainer.find("precision"); precision != nullptr && precision->is_scalar()) {
    const Config value = *precision;
    if (const std::string present = present_precision(value.text()); present != value.text()) {
      note(value.origin(), "precision: " + value.text(), "precision: " + present);
      trainer.set("precision", Config::scalar(present, false, value.origin()));
    }
  }
  if (const Config* backend = trainer.find("amp_backend")) {
    if (!backend->is_scalar() || (backend->text() != "native" && backend->text() != "apex"))
      throw ConfigError(
          fmt::format("trainer.amp_backend is not understood; got {}; valid: native, apex", backend->describe()));
    note(backend->origin(), "amp_backend: " + backend->text(), "LibTorch's own autocast, which is always used");
    trainer.erase("amp_backend");
  }
}

}  // namespace levin
