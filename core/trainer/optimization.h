#pragma once

#include <levin/core/trainer/hooks.h>

#include <cstdint>
#include <functional>

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
  /// No rank has data for another batch, as found out in a window just reduced.
  bool data_ended() const { return data_ended_; }
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers() const;

  /// Whether schedulers follow the batch just run: it took a step, and none that was skipped in half precision is still
  /// to be made up for. To be asked once a batch.
  bool schedulers_are_due();
  /// Steps the schedulers of an interval: `plateau` those that follow a metric, or the others.
  void step_schedulers(Interval interval, bool plateau);

 private:
  Module& module() override { return core_.module(); }
  StepOutput step(Module& module, const Batch& batch) override;
  StepOutput step_end(StepOutput output) override;
  void before_backward(StepOutput& output) override;
  void backward(StepOutput& output) override;
  void after_backward() override;

  at::Tensor run_closure();
  void drive_step(OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure);
  void prepare_step(OptimizerHandle& optimizer, StepScaling& scaling);
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
  bool data_ended_ = false;
  bool closure_ran_ = false;
};

}  // namespace levin
