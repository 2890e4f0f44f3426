#pragma once

#include <levin/core/base/loss_weight.h>
#include <levin/core/base/state.h>
#include <levin/core/metrics/log_options.h>
#include <levin/core/metrics/metric.h>
#include <levin/core/metrics/metric_reference.h>
#include <levin/core/metrics/output_ranks.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin::metrics::detail {

enum class Over { kStep, kEpoch };

/// When a value was made. The members before decide first.
struct LogTime {
  int64_t training_batches = 0;  ///< begun in all epochs, see FitProgress::moment
  int64_t dataloader_idx = 0;
  int64_t evaluation_batches = 0;  ///< begun of this loader
  friend auto operator<=>(const LogTime&, const LogTime&) = default;
};

/// Returns the value of `reduce` over no values.
double empty_value(LogReduce reduce);
/// Combines `value` into the result of `reduce` so far; for a mean, both are sums.
void combine(LogReduce reduce, double& into, double value);
/// Returns the value that several ranks gave, which should be the same on each; their mean when they differ.
std::optional<double> agreed_value(const std::vector<double>& values);

/// Description of a logged name.
struct SlotDescription {
  std::string name;              ///< as logged
  int64_t dataloader_idx = 0;    ///< of the first log
  bool several_loaders = false;  ///< the name that users see has the loader's index, unless options say otherwise
  LogOptions options;            ///< with on_step, on_epoch and sync_dist set
  bool is_metric = false;

  /// Returns the name with the loader's suffix.
  std::string short_name() const;
  /// Returns whether the loaders' values are combined under one name.
  bool is_of_all_loaders() const { return several_loaders && !options.add_dataloader_idx; }
  /// Returns the loader that the name belongs to; -1 for all of them.
  int64_t own_loader() const { return is_of_all_loaders() ? -1 : dataloader_idx; }
  State to_state() const;
  static SlotDescription from_state(const State& state);

  /// Returns whether its values are combined over ranks.
  bool is_reduced(Over over, const OutputRanks& outputs) const {
    return !outputs.everywhere ||
           ((*options.sync_dist || (is_metric && over == Over::kEpoch)) && !options.rank_zero_only);
  }
};

/// State of one logged name: its last value, weighted sum and weight, or its metric, all of this rank alone; and beside
/// them the result of a reduction over ranks.
struct LoggedSlot {
  explicit LoggedSlot(SlotDescription described);

  /// Resets to before the epoch.
  void clear();
  void add_host(double value, double weight);
  void add_device(const at::Tensor& value, double weight);
  /// Logs a metric. Throws levin::Error when the one logged before in this epoch is gone.
  void add_metric(Metric& logged, double weight);
  /// Gives the values logged at the last moment another weight in the mean; with 0, NaN too counts nothing.
  void weigh_last(const LossWeight& weight);
  /// Notes the moment of a log, which gives the step a value.
  void mark_logged(int64_t at, const LogTime& now);
  /// Does the host's part of a log whose values a recorded graph adds, once it is marked.
  void log_again(double weight);

  /// Returns {last, combined, weight} on the host.
  std::array<double, 3> read() const;
  bool was_logged() const { return stamp >= 0; }
  /// Whether it has a value of a step in this epoch, of this rank or of several.
  bool has_step() const { return (was_logged() && has_step_value) || is_step_combined(); }
  bool is_step_combined() const { return reduced_step.known && reduced_step.value; }
  LogTime step_time() const { return reduced_step.known ? reduced_step.time : time; }
  std::optional<double> step_value() const;
  std::optional<double> epoch_value() const;

  /// Stores the metric's state in `waiting_state`, so that the same object can serve the next loader.
  void end_metric();
  /// One tensor of the metric's state and how it is combined.
  struct MetricState {
    std::string name;
    Reduction reduction;
    at::Tensor value;
  };
  /// Returns the states by name, of the metric or waiting for it; empty when there are none. Over the step, those of
  /// the metric's last batch.
  std::vector<MetricState> metric_states(Over over) const;
  /// Returns the metric that was logged, or nullptr. Throws levin::Error when it is gone.
  Metric* living_metric() const { return metric.get(description.name); }
  /// Returns the metric object to compute with, whose present state may be another loader's; nullptr when none is known
  /// yet.
  Metric* computing_metric() const { return (metric ? metric : ended_metric).get(description.name); }
  /// Computes a metric's value, which must be one number, from `states` when given, else from its own.
  double computed_by(Metric& computing, std::vector<at::Tensor> states = {}) const;
  /// Returns the value that the metric computed before its state was put aside.
  std::optional<double> waiting(Over over) const { return over == Over::kStep ? waiting_step_value : waiting_value; }

  State state_dict() const;
  void load_state_dict(const State& state);

  /// Returns a hash of the description, equal on ranks that agree about the name.
  uint64_t identity() const { return identity_; }

  SlotDescription description;
  std::string short_name;  ///< with the loader's suffix
  std::string step_name;
  std::string epoch_name;
  int64_t stamp = -1;          ///< the moment of the last log; -1: not in this epoch
  LogTime time = {};           ///< of that moment
  bool has_step_value = true;  ///< false: another rank's was not restored

  // {last, combined, weight, and combined and weight before the last moment}: on the host for host values, else a
  // tensor on the device.
  double host[5] = {0, 0, 0, 0, 0};
  at::Tensor device;
  double last_weight = 0;         ///< weight of the last log
  bool weight_was_given = false;  ///< with it
  int64_t logs = 0;               ///< at the last moment
  bool is_weighed = false;        ///< moments get weights: the device keeps what was before the last one
  bool is_empty = true;           ///< nothing was logged since clear()
  bool has_before_last = false;   ///< on the device

  MetricReference metric;
  bool metric_was_logged = false;       ///< in this epoch
  MetricReference ended_metric;         ///< the metric whose state was put aside
  State waiting_state;                  ///< a metric's state, restored or put aside
  State waiting_reductions;             ///< the reductions of waiting_state, by name
  std::optional<double> waiting_value;  ///< the metric's value from waiting_state
  std::optional<double> waiting_step_value;

  /// Result over ranks; forgotten when the name is logged again.
  struct Reduced {
    bool known = false;
    std::optional<double> value;
    LogTime time = {};  ///< of a step, that of the rank that logged last
  };
  Reduced reduced_step;
  Reduced reduced_epoch;

 private:
  void identify();
  void move_to(const at::Device& target);
  void forget_reduced() { reduced_step.known = reduced_epoch.known = false; }

  uint64_t identity_ = 0;
};

}  // namespace levin::metrics::detail
