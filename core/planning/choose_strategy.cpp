#include <levin/core/planning/choose_strategy.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/options/registries.h>
#include <levin/core/planning/memory_planner.h>
#include <levin/core/planning/strategy_choice.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// The variable by which the choice of the next call is passed on to ranks that are further runs of this program.
std::string variable_of_next_call() {
  static std::atomic<int> calls = 0;
  return fmt::format("LEVIN_CHOSEN_STRATEGY_{}", ++calls);
}

std::string to_text(const PlanRow& way) {
  return nlohmann::json{{"pipeline", way.pipeline}, {"replicate", way.replicate}, {"shard", way.shard},
                        {"tensor", way.tensor},     {"stage", way.stage},         {"offload", way.offload},
                        {"schedule", way.schedule}, {"chunks", way.chunks},       {"checkpoints", way.checkpoints}}
      .dump();
}

PlanRow from_text(const char* text) {
  const auto json = nlohmann::json::parse(text);
  return {.pipeline = json["pipeline"],
          .replicate = json["replicate"],
          .shard = json["shard"],
          .tensor = json["tensor"],
          .stage = json["stage"],
          .offload = json["offload"],
          .schedule = json["schedule"],
          .chunks = json["chunks"],
          .checkpoints = json["checkpoints"]};
}

/// The choice of the process that has started this one as a further run of the program; nothing where none has.
std::optional<PlanRow> choice_of_first_rank(const ClusterEnvironment* environment, const std::string& variable) {
  if (environment == nullptr || environment->name() != "Levin" || environment->local_rank() == 0) return std::nullopt;
  const char* const text = std::getenv(variable.c_str());
  return text == nullptr ? std::nullopt : std::optional(from_text(text));
}

/// Of ranks that a launcher has started, each measures on its own device.
void measure_on_own_device(TrainerOptions& planning, const ClusterEnvironment* environment) {
  if (environment == nullptr || environment->world_size() == 1 || planning.accelerator == "cpu") return;
  const int64_t devices = AcceleratorRegistry::instance().find(planning.accelerator)->device_count();
  const int64_t local_rank = environment->local_rank();
  if (local_rank < devices) planning.devices = DeviceSpec(std::vector<int64_t>{local_rank});
}

}  // namespace

TrainerOptions choose_strategy(TrainerOptions options, const std::shared_ptr<Module>& module,
                               const std::shared_ptr<DataModule>& data) {
  if (options.strategy.object() != nullptr || !is_limited_auto(options.strategy.config())) return options;
  resolve_limited_auto(options.strategy.config());
  const auto environment = registries().detect_environment();
  const std::string variable = variable_of_next_call();
  if (const auto way = choice_of_first_rank(environment.get(), variable)) return with_mesh(std::move(options), *way);

  const auto planner = std::make_shared<MemoryPlanner>(PlanOptions{.devices = {{1}}}, options);
  TrainerOptions planning = planning_options(options, planner);
  measure_on_own_device(planning, environment.get());
  Trainer trainer(planning);
  trainer.tune(module, data);
  if (trainer.interrupted()) throw Error("plan", "interrupted before a strategy was chosen");

  const StrategyChoice choice = choose_mesh(planner->needs(), options);
  if (environment == nullptr || environment->rank() == 0) log::info(choice.table);
  setenv(variable.c_str(), to_text(choice.way).c_str(), /*replace=*/1);
  return with_mesh(std::move(options), choice.way);
}

}  // namespace levin
