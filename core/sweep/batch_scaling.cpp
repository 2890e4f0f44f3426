#include <levin/core/sweep/batch_scaling.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/options/options.h>
#include <levin/core/options/resolved_options.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace levin::sweep {
namespace {

/// Refuses callbacks that choose in the run what is set here.
void refuse_callbacks(const Config& resolved, const std::string& option, const std::vector<std::string>& names) {
  const auto trainer = parse_options<TrainerOptions>(*resolved.find("trainer"), "trainer");
  for (const auto& callback : trainer.callbacks)
    if (const std::string name = callback.name("trainer.callbacks", "callback");
        std::find(names.begin(), names.end(), name) != names.end())
      throw ConfigError(
          fmt::format("{}: the callback {} chooses in the run what this sets; valid: one of the two", option, name));
}

/// Batches of a rank in a step of the optimizer. `option`: the one that needs to know.
int64_t accumulated_batches(const Config& resolved, const std::string& option) {
  const Config* accumulated = resolved.find_path("trainer.accumulate_grad_batches");
  if (accumulated == nullptr || !accumulated->is_scalar())
    throw ConfigError(option + ": trainer.accumulate_grad_batches must be one number");
  return ConfigCodec<int64_t>::parse(*accumulated, "trainer.accumulate_grad_batches");
}

/// How many ranks have batches of their own.
int64_t data_parallel_size(const Config& resolved, const RunDevices& devices, const std::string& option) {
  const auto trainer = parse_options<TrainerOptions>(*resolved.find("trainer"), "trainer");
  const Config chosen = trainer.strategy.config();
  if (chosen.is_mapping() && chosen.find("memory") != nullptr)
    throw ConfigError(option +
                      ": trainer.strategy is chosen when a run starts, and how many ranks have batches of "
                      "their own is not known before; valid: a strategy by name, or a mesh");
  const auto strategy = make_strategy(trainer, devices.count * devices.hosts);
  return strategy->capabilities().several_devices ? strategy->data_parallel_size(devices.count, devices.hosts) : 1;
}

/// The option of the data module for a batch of all ranks, where it has one that is set.
const Config* global_batch(const Config& resolved) {
  const Config* given = resolved.find_path("data.global_batch_size");
  return given == nullptr || given->is_null() ? nullptr : given;
}

}  // namespace

Settings batch_size_of(const SweepOptions& options, const Config& resolved, const RunDevices& devices) {
  if (!options.global_batch_size) return {};
  if (resolved.find_path("data.batch_size") == nullptr)
    throw ConfigError("sweep.global_batch_size sets data.batch_size, which the program's data module does not have");
  if (const Config* given = global_batch(resolved))
    throw ConfigError(
        fmt::format("sweep.global_batch_size sets data.batch_size, for which data.global_batch_size "
                    "stands; got {} and {}; valid: one of the two",
                    *options.global_batch_size, given->text()));
  const std::string option = "sweep.global_batch_size";
  refuse_callbacks(resolved, option, {"gradient_accumulation_scheduler", "batch_size_finder"});
  const int64_t ranks = data_parallel_size(resolved, devices, option);
  const int64_t accumulated = accumulated_batches(resolved, option);
  if (*options.global_batch_size % (ranks * accumulated) != 0)
    throw ConfigError(
        fmt::format("{} must be a multiple of the batches in a step of the optimizer; got {} for {} "
                    "ranks with batches of their own x {} accumulated",
                    option, *options.global_batch_size, ranks, accumulated));
  return {{"data.batch_size", ConfigCodec<int64_t>::dump(*options.global_batch_size / (ranks * accumulated))}};
}

Settings learning_rate_of(const SweepOptions& options, const Config& resolved, const RunDevices& devices) {
  if (!options.learning_rate_scaling) return {};
  const auto& [option, reference, rule] = *options.learning_rate_scaling;
  const Config* rate = resolved.find_path(option);
  if (rate == nullptr || !rate->is_scalar())
    throw ConfigError(
        fmt::format("sweep.learning_rate_scaling.option: there is no option '{}'; hint: the dotted name "
                    "of the learning rate, such as model.lr",
                    option));
  const Config* of_all = global_batch(resolved);
  const Config* batch_size = of_all != nullptr ? of_all : resolved.find_path("data.batch_size");
  if (batch_size == nullptr)
    throw ConfigError(
        "sweep.learning_rate_scaling needs data.batch_size, which the program's data module does not have");
  const std::string for_option = "sweep.learning_rate_scaling";
  refuse_callbacks(resolved, for_option,
                   {"gradient_accumulation_scheduler", "batch_size_finder", "learning_rate_finder"});
  const int64_t batches = accumulated_batches(resolved, for_option) *
                          (of_all != nullptr ? 1 : data_parallel_size(resolved, devices, for_option));
  const double global =
      static_cast<double>(batches) * static_cast<double>(ConfigCodec<int64_t>::parse(*batch_size, "data.batch_size"));
  const double ratio = global / static_cast<double>(reference);
  const double scaled = ConfigCodec<double>::parse(*rate, option) * (rule == "sqrt" ? std::sqrt(ratio) : ratio);
  return {{option, Config::scalar(fmt::format("{:.6g}", scaled), false, rate->origin())}};
}

}  // namespace levin::sweep
