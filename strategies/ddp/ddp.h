#pragma once

#include <levin/core/interfaces/independent_steps.h>
#include <levin/strategies/ddp/local_steps.h>
#include <levin/strategies/ranks/ranked_strategy.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace c10d {
class CommHookInterface;
}

namespace levin {

class GradientReducer;
struct GradientReducerOptions;

/// Bytes in a MiB, the unit of bucket sizes.
inline constexpr double kBytesPerMib = 1 << 20;

/// Options of Ddp, explained in describe().
struct DdpOptions {
  double bucket_cap_mb = 25;
  double first_bucket_cap_mb = 1;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool broadcast_buffers = true;
  std::string gradient_compression = "none";
  ReplicaSync sync = ReplicaSync::kGradients;
  int64_t every = 64;
  std::optional<OuterOptimizerOptions> outer = {};
  StartMethod start_method = StartMethod::kSubprocess;
  std::string backend = "auto";
  double timeout = 1800;
  double start_timeout = 120;
  double stall_report = 60;
  double hang_timeout = 600;
  std::string scale_lr = "none";

  static void describe(Schema<DdpOptions>& schema);
};

/// Distributed data parallel: every rank has the whole model and a part of each batch, and gradients are averaged while
/// backward runs (Li et al., "PyTorch Distributed", 2020), by c10d's Reducer. With one rank it is as single_device.
///
/// With `sync: local_sgd` or `diloco` ranks step alone and agree on weights every few steps: see LocalSteps.
///
/// For a process group or a wrapping of one's own: derive, override make_group or communication_hook, and register the
/// class under a name.
class Ddp : public RankedStrategy, public LocalWeights {
 public:
  using Options = DdpOptions;
  explicit Ddp(const Options& options = {});
  ~Ddp() override;

  StrategyCapabilities capabilities() const override;
  DividedModel& divided_model() override { return steps_alone() ? local_steps_ : RankedStrategy::divided_model(); }
  void setup_environment(const StrategySetup& setup) override;
  void setup_module(Module& module) override;
  StepOutput forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) override;
  std::optional<WindowTotals> window_totals() override { return totals_; }
  /// Records where gradients can be combined when backward is done.
  GraphSupport graph_support() override;
  StepOutput manual_step(const Batch& batch, StepPhases& phases) override;
  void manual_backward(const at::Tensor& loss, const BackwardOptions& options) override;
  std::vector<at::Tensor> uncombined() const override { return uncombined_; }
  void combine_gradients(const std::vector<at::Tensor>& parameters) override;
  void broadcast_optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) override;
  void prepare_evaluation(Module& module) override;
  bool has_local_weights() override { return steps_alone() && !is_alone(); }
  State state_dict() const override { return local_steps_.state_dict(); }
  void load_state_dict(const State& state) override { local_steps_.load_state_dict(state); }
  double learning_rate_scale() const override;
  void teardown() override;
  void restart_steps(bool alone) override;

 protected:
  /// Runs the forward part of a step.
  virtual StepOutput forward(const Batch& batch, StepPhases& phases) { return phases.forward(batch); }
  /// Part of the batch's examples that the newest loss is of.
  virtual double loss_share() const { return 1; }
  /// Makes a way of one's own to combine gradients; nullptr for that of the options.
  virtual std::unique_ptr<c10d::CommHookInterface> communication_hook(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  /// For a strategy whose ranks average gradients with those along `replicate` alone. `family`: see RankGroup.
  Ddp(const std::string& family, const Options& options);
  const Options& options() const { return options_; }
  /// The module of the call under way.
  const Module& current_module() const { return *module_; }

 private:
  /// Whether replicas exchange weights instead of gradients.
  bool steps_alone() const { return options_.sync != ReplicaSync::kGradients; }
  StepOutput step_alone(const Batch& batch, StepPhases& phases, const AccumulationWindow& window);
  /// Whether there is nobody to average gradients with.
  bool is_alone() const { return replicas_ == nullptr || alone_; }
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const;
  GradientReducer& reducer(Module& module, bool manual);
  GradientReducerOptions reduction(bool manual, bool has_hook);
  void send_buffers(Module& module);
  void with_reduction_errors(const GradientReducer& gradients, const std::function<void()>& backward);

  const Options options_;
  LocalSteps local_steps_;
  std::shared_ptr<Collective> replicas_;                    ///< ranks with the same parameters; nullptr: no others
  std::vector<std::unique_ptr<GradientReducer>> reducers_;  ///< the one used last is the first
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::unordered_set<const c10::TensorImpl*> sparse_;  ///< parameters with sparse gradients
  std::vector<at::Tensor> uncombined_;
  std::optional<WindowTotals> totals_;
  Module* module_ = nullptr;
  bool has_buffers_ = false;
  bool sync_batchnorm_ = false;
  bool alone_ = false;    ///< see restart_steps
  bool records_ = false;  ///< steps may be recorded, so that gradients are combined when backward is done
};

}  // namespace levin
