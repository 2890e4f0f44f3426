#pragma once

#include <levin/core/connectors/data_connector.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/interfaces/optimizer_handle.h>
#include <levin/core/optim/accumulation_schedule.h>
#include <levin/core/optim/gradient_clipping.h>
#include <levin/core/optim/optimizer_config.h>
#include <levin/core/optim/parameter_names.h>
#include <levin/core/optim/scheduler.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// Owns the optimizers of a fit and their schedulers, as configure_optimizers gives them, and the schedule of
/// accumulation.
class OptimizerConnector {
 public:
  OptimizerConnector(const ResolvedOptions& options, TrainerState& state, Tracer& tracer, const DataConnector& data,
                     LoggerConnector& logger);

  /// Forgets what earlier fits changed.
  void begin_fit();
  /// Makes optimizers and schedulers from the module's configure_optimizers. `driver`: what takes a step. Throws
  /// levin::Error where they do not fit the module, the options or the strategy.
  void configure(const OptimizerHandle::Driver& driver);

  /// Makes what the options `optimizer` and `scheduler` name; see Module::configured_optimizers.
  OptimizerConfigs configured();

  const std::vector<OptimizerHandle*>& all() const { return list_; }
  /// Names of the tensors that the optimizers step.
  const optim::ParameterNames& parameter_names() const { return parameter_names_; }
  /// Makes the optimizers' state that of rank 0, where the strategy asks for it; a collective.
  void broadcast();

  // ---- State by parameter name, as this strategy holds it.

  State state_dict() const;
  State schedulers_state_dict() const;
  /// Which values those have seen that follow a metric.
  State followed_metrics_state() const;
  void load_followed_metrics(const State& state);
  /// Which optimizers' gradients wait for a step by hand.
  State awaited_steps_state() const;
  void load_awaited_steps(const State& state);
  /// Loads both; throws levin::Error where there are others than configure_optimizers gives.
  void load_state_dict(const State& optimizers, const State& schedulers);

  // ---- Accumulation and length.

  const optim::AccumulationSchedule& accumulation() const { return accumulation_; }
  void set_accumulation(optim::AccumulationSchedule schedule) { accumulation_ = std::move(schedule); }
  /// Optimizer steps of the whole run; nothing when it has no planned end.
  std::optional<int64_t> estimated_steps() const;

  // ---- Learning rates.

  /// The learning rate that configure_optimizers gives the first group of the first optimizer; there must be one.
  double learning_rate() const;
  /// Sets that group's learning rate, and all others' in the proportions of configure_optimizers. Schedulers do not
  /// notice.
  void set_learning_rate(double rate);
  /// Starts schedulers anew, planned for the present length of the run, from the learning rate that is given or else
  /// from that of configure_optimizers; as though configure_optimizers had given it.
  void restart_schedules(std::optional<double> rate = {});
  /// Steps the schedulers of an interval that are due. Those that follow a metric wait for follow_metrics.
  void step_schedulers(Interval interval);
  /// Schedulers that follow a metric and are due now wait for its next value.
  void expect_metrics(Interval interval);
  /// Steps those of them that wait and whose metric has a value that they have not seen. With several ranks a
  /// collective.
  void follow_metrics(Interval interval);
  /// At the end of a whole epoch: throws levin::Error for a metric that a scheduler waits for and that nobody logged,
  /// though validation had its turn as well.
  void require_metrics() const;
  /// At the end of a fit: names the metrics that schedulers waited for in vain.
  void warn_of_unfollowed_metrics() const;
  /// Replaces all schedulers; see Trainer::replace_schedulers.
  void replace_schedulers(std::shared_ptr<optim::Scheduler> scheduler, Interval interval);
  /// Learning rates by name, one for each optimizer and parameter group; see Trainer::learning_rates.
  std::vector<std::pair<std::string, double>> learning_rates() const;

  // ---- Gradients.

  /// Throws levin::Error, with the parameter's name, for a gradient that is sparse (or dense) where the optimizer does
  /// not take it.
  void require_taken_gradients(const OptimizerHandle& optimizer) const;
  /// Clips the gradients of an optimizer, which are unscaled first. `in_step`: the step that follows may do it.
  void clip(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm, bool in_step);
  /// Multiplies all gradients by one number, which may be on the device.
  void scale_gradients(const at::Tensor& factor);

 private:
  /// A scheduler with the settings of its optimizer's configuration.
  struct ScheduledRate {
    std::shared_ptr<optim::Scheduler> scheduler;
    SchedulerConfig config;
    size_t optimizer = 0;  ///< index of the optimizer
    // Of one that follows a metric:
    bool waits = false;        ///< a step is due and waits for a new value
    int64_t seen_moment = -1;  ///< of the value that it followed last; see Trainer::moment_of_metric
  };

  void check(const OptimizerConfigs& configs) const;
  void add(const OptimizerConfig& config, const OptimizerHandle::Driver& driver);
  /// Number of steps that a scheduler takes in the whole run; -1 when that is unknown.
  int64_t planned_steps(const SchedulerConfig& config) const;
  void count_steps_elsewhere();
  /// A value of the metric that the scheduler has not seen yet, as rank 0 knows it.
  std::optional<double> new_value(ScheduledRate& scheduled);
  bool is_due(const ScheduledRate& scheduled) const;
  template <class Visit>
  void visit_schedulers(Interval interval, bool of_metrics, const Visit& visit);
  void step(ScheduledRate& scheduled, std::optional<double> metric);
  std::string never_logged(const SchedulerConfig& config) const;

  const ResolvedOptions& options_;
  TrainerState& state_;
  Tracer& tracer_;
  Strategy& strategy_;
  DividedModel& model_;
  const DataConnector& data_;
  LoggerConnector& logger_;
  std::vector<std::unique_ptr<OptimizerHandle>> handles_;
  std::vector<OptimizerHandle*> list_;
  std::vector<ScheduledRate> schedulers_;
  optim::ParameterNames parameter_names_;
  optim::AccumulationSchedule accumulation_;
  bool made_configured_ = false;                 ///< by this configure_optimizers
  std::vector<std::vector<double>> base_rates_;  ///< of each optimizer's groups, before any schedule
};

}  // namespace levin
