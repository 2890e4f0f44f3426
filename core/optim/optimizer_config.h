#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/events.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace levin {

namespace optim {
class Scheduler;
}  // namespace optim

/// A learning rate scheduler, by name or as an object, and when it steps.
struct SchedulerConfig {
  std::string name = {};  ///< "cosine"; empty: `scheduler`, or none at all
  Interval interval = Interval::kEpoch;
  int64_t frequency = 1;     ///< steps every so many intervals
  std::string monitor = {};  ///< the metric that reduce_on_plateau follows
  bool strict = true;        ///< whether a metric that nobody logged is an error, or else a warning
  Config options = {};       ///< for `name`: a mapping, or null for the defaults
  int64_t warmup_steps = 0;  ///< steps that rise linearly to the learning rate before the schedule begins
  std::shared_ptr<optim::Scheduler> scheduler = {};  ///< instead of `name`

  /// Whether there is a scheduler at all.
  explicit operator bool() const { return !name.empty() || scheduler != nullptr; }
};

/// One optimizer and the scheduler of its learning rates.
struct OptimizerConfig {
  std::shared_ptr<torch::optim::Optimizer> optimizer = {};
  SchedulerConfig scheduler = {};
  std::vector<SchedulerConfig> more_schedulers = {};
};

/// Result of configure_optimizers: nothing, one optimizer or several, with or without schedulers.
class OptimizerConfigs : public std::vector<OptimizerConfig> {
 public:
  OptimizerConfigs() = default;
  OptimizerConfigs(OptimizerConfig config) { push_back(std::move(config)); }  // NOLINT(google-explicit-constructor)
  OptimizerConfigs(std::initializer_list<OptimizerConfig> configs) : vector(configs) {}
  OptimizerConfigs(std::initializer_list<std::shared_ptr<torch::optim::Optimizer>> optimizers) {
    for (const auto& optimizer : optimizers) push_back({.optimizer = optimizer});
  }
  template <class T>
  requires std::is_convertible_v<std::shared_ptr<T>, std::shared_ptr<torch::optim::Optimizer>> OptimizerConfigs(
      std::shared_ptr<T> optimizer) {  // NOLINT(google-explicit-constructor)
    push_back({.optimizer = std::move(optimizer)});
  }
};

}  // namespace levin
