#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/optim/scheduler.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace levin::optim {

/// A learning rate for all parameter groups, or one for each. In YAML a number or a list.
class GroupRates {
 public:
  GroupRates() = default;
  GroupRates(double rate) : rates_{rate} {}  // NOLINT(google-explicit-constructor)
  GroupRates(std::initializer_list<double> rates) : rates_(rates) {}
  explicit GroupRates(std::vector<double> rates) : rates_(std::move(rates)) {}

  const std::vector<double>& values() const { return rates_; }
  /// The rate of a group; groups beyond the last rate have the last one.
  double of_group(size_t group) const { return rates_[group < rates_.size() ? group : rates_.size() - 1]; }

 private:
  std::vector<double> rates_;
};

struct SwaSchedulerOptions {
  GroupRates swa_lrs = {};                 ///< learning rates at the end; required
  int64_t annealing_epochs = 10;           ///< steps until then; 0 at once
  std::string annealing_strategy = "cos";  ///< cos or linear
};

/// Goes from the learning rates that it finds to constant ones, as torch.optim.swa_utils.SWALR: the schedule of
/// stochastic weight averaging.
class SwaScheduler final : public StepwiseScheduler {
 public:
  /// Throws ConfigError for an option out of range.
  explicit SwaScheduler(SwaSchedulerOptions options);

  void bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) override;

 protected:
  double first_lr(size_t group, double current) const override { return next_lr(group, current); }
  double next_lr(size_t group, double current) const override;

 private:
  const SwaSchedulerOptions options_;
};

}  // namespace levin::optim

namespace levin {

template <>
struct ConfigCodec<optim::GroupRates> {
  static std::string type_name() { return "number or list of numbers"; }
  static optim::GroupRates parse(const Config& node, const std::string& path);
  static Config dump(const optim::GroupRates& value);
};

}  // namespace levin
