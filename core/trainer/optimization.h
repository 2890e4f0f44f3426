#pragma once

#include <levin/core/trainer/graphed_step.h>
#include <levin/core/trainer/hooks.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace levin {

/// One training batch: forward, backward and, at the end of an accumulation window, the optimizer step.
class Optimization final : private StepPhases {
 public:
  Optimization(RankCore& core, Hooks& hooks);

  /// Makes optimizers and schedulers from the module's configure_optimizers.
  void configure();

  /// Where a batch stands among the others, on this rank and on all.
  struct Place {
    int64_t batch_idx = 0;
    bool is_last = false;              ///< no batch follows in this epoch, on any rank
    std::optional<int64_t> remaining;  ///< batches that follow; nothing when unknown
    double weight = 1;                 ///< of this rank's loss in the mean over the ranks; 0 where it has no data
    bool counts_participants = false;  ///< see StepWindow
    bool has_next = true;              ///< see StepWindow
  };
  const StepOutput& run(const Batch& batch, const Place& place);
  /// Of the last batch.
  const StepOutput& output() const { return output_; }
  /// No rank has data for another batch, as found out in a window just reduced.
  bool data_ended() const { return data_ended_; }
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers() const;

  /// Whether schedulers follow the batch just run: it took a step, and none that was skipped in half precision is still
  /// to be made up for. To be asked once a batch.
  bool schedulers_are_due();
  /// The learning rate that configure_optimizers gives the first group of the first optimizer; there must be one.
  double learning_rate() const;
  /// Gives that group another one, and all others theirs in the proportions of configure_optimizers. Schedulers do not
  /// notice.
  void set_learning_rate(double rate);
  /// Schedulers start anew, planned for the present length of the run, from the learning rate that is given or else
  /// from that of configure_optimizers; as though configure_optimizers had given it.
  void restart_schedules(std::optional<double> rate = {});

  /// Runs forward and backward of a micro-batch, or a whole step of manual optimization.
  using MicroBatch = std::function<StepOutput()>;
  /// Puts something around every micro-batch: a trial that may run out of memory. nullptr takes it away.
  void set_guard(std::function<StepOutput(const MicroBatch&)> guard) { guard_ = std::move(guard); }

  /// From here to `end_graphs`, on the calling thread, steps are recorded and replayed where the options ask for it.
  void start_graphs();
  void end_graphs() { graphs_.reset(); }

  /// Steps the schedulers of an interval: `plateau` those that follow a metric, or the others.
  void step_schedulers(Interval interval, bool plateau);

 private:
  Module& module() override { return core_.module(); }
  StepOutput step(Module& module, const Batch& batch) override;
  StepOutput step_end(StepOutput output) override;
  void before_backward(StepOutput& output) override;
  void backward(StepOutput& output) override;
  void after_backward() override;
  std::shared_ptr<void> forward_scope() override { return std::make_shared<ForwardScope>(core_.precision()); }

  at::Tensor run_closure();
  StepOutput guarded(const MicroBatch& run) { return guard_ ? guard_(run) : run(); }
  /// How many steps a scheduler takes in the whole run; -1 when that is unknown.
  int64_t planned_steps(const SchedulerConfig& config) const;
  void drive_step(OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure);
  void prepare_step(OptimizerHandle& optimizer, StepScaling& scaling);
  void clip_gradients(OptimizerHandle& optimizer);
  void end_window();
  void count_participants();
  void scale_partial_window();
  void scale_gradients(double factor);

  RankCore& core_;
  Hooks& hooks_;
  OptimizerHandle::Closure closure_;
  StepOutput output_;
  const Batch* batch_ = nullptr;
  Place place_;
  StepWindow window_;
  std::function<StepOutput(const MicroBatch&)> guard_;
  std::vector<std::vector<double>> base_rates_;  ///< of each optimizer's groups, before any schedule
  bool data_ended_ = false;
  bool closure_ran_ = false;
  std::unique_ptr<GraphedStep> graphs_;
  bool replays_ = false;  ///< the step under way is replayed from the graphs
};

}  // namespace levin
