#include <levin/core/optim/swa_scheduler.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace levin::optim {

SwaScheduler::SwaScheduler(SwaSchedulerOptions options) : options_(std::move(options)) {
  const auto& rates = options_.swa_lrs.values();
  if (rates.empty() || std::any_of(rates.begin(), rates.end(), [](double rate) { return rate <= 0; }))
    throw ConfigError("swa_lrs must be a learning rate above 0, or one for each parameter group; got " +
                      ConfigCodec<GroupRates>::dump(options_.swa_lrs).to_flow());
  if (options_.annealing_epochs < 0)
    throw ConfigError(fmt::format("annealing_epochs must be at least 0; got {}", options_.annealing_epochs));
  if (options_.annealing_strategy != "cos" && options_.annealing_strategy != "linear")
    throw ConfigError(
        fmt::format("annealing_strategy must be one of cos, linear; got '{}'", options_.annealing_strategy));
}

void SwaScheduler::bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) {
  Scheduler::bind(optimizer, initial_lrs);
  const size_t given = options_.swa_lrs.values().size();
  if (given != 1 && given != group_count())
    throw ConfigError(
        fmt::format("swa_lrs has {} learning rates, but the optimizer {} parameter groups; valid: one "
                    "for all, or one for each",
                    given, group_count()));
}

double SwaScheduler::next_lr(size_t group, double /*current*/) const {
  const auto length = static_cast<double>(options_.annealing_epochs);
  const double done = options_.annealing_epochs == 0 ? 1 : std::min(1.0, static_cast<double>(steps_taken()) / length);
  const double share = options_.annealing_strategy == "linear" ? done : (1 - std::cos(std::numbers::pi * done)) / 2;
  return options_.swa_lrs.of_group(group) * share + base_lr(group) * (1 - share);
}

}  // namespace levin::optim

namespace levin {

using optim::GroupRates;

GroupRates ConfigCodec<GroupRates>::parse(const Config& node, const std::string& path) {
  if (node.is_sequence()) return GroupRates(ConfigCodec<std::vector<double>>::parse(node, path));
  return ConfigCodec<double>::parse(node, path);
}

Config ConfigCodec<GroupRates>::dump(const GroupRates& value) {
  if (value.values().size() == 1) return ConfigCodec<double>::dump(value.values().front());
  return ConfigCodec<std::vector<double>>::dump(value.values());
}

}  // namespace levin
