#pragma once

#include <levin/core/accelerators/graph_recorder.h>
#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/rank_status.h>
#include <levin/core/data/batch.h>
#include <levin/core/interfaces/backward_options.h>
#include <levin/core/interfaces/divided_model.h>
#include <levin/core/interfaces/ranks.h>
#include <levin/core/interfaces/step_output.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace levin {

class Module;

/// The parts of one step, in the order in which a strategy must call them; the loop implements them.
class StepPhases {
 public:
  virtual ~StepPhases() = default;
  /// The rank's own module.
  virtual Module& module() = 0;
  /// Runs training_step, validation_step or test_step of a module, the rank's own or a replica, under the precision's
  /// forward scope. May run on any thread.
  virtual StepOutput step(Module& module, const Batch& batch) = 0;
  /// Runs training_step_end and the like, once a step, over the whole output.
  virtual StepOutput step_end(StepOutput output) = 0;
  /// Runs the whole forward part where there are no replicas.
  StepOutput forward(const Batch& batch) { return step_end(step(module(), batch)); }
  /// Calls the hooks before the gradients of a window are cleared, and before backward. Training only, as all that
  /// follows.
  virtual void before_backward(StepOutput& output) = 0;
  /// Counts an output's loss in the window's weight, as `backward` does where nobody has yet. `share`: of the batch's
  /// examples, where the output is of a part of them.
  virtual void weigh(const StepOutput& output, double share = 1) = 0;
  /// Returns the weight of this rank's losses in the window so far.
  virtual const LossWeight& window_weight() const = 0;
  /// Runs backward of the loss times its weight over one number that is the same on all ranks.
  virtual void backward(StepOutput& output) = 0;
  virtual void after_backward() = 0;
  /// Opens the scope in which a step runs, for a forward of a part of the module outside of `step`.
  virtual std::shared_ptr<void> forward_scope() = 0;
};

/// Place of a batch in its accumulation window.
struct AccumulationWindow {
  bool sync = true;   ///< the last of the window: gradients are combined over ranks
  int64_t index = 0;  ///< number of the batch in the window
  int64_t size = 1;   ///< batches in the window
  /// Ranks may run out of data at different times, and nobody knows when: the strategy finds out, with what it reduces
  /// anyway, whether any has more (see WindowTotals).
  bool uneven_inputs = false;
  bool has_next = true;  ///< whether this rank has data for the batch after this one
};

/// Capabilities of a strategy; conflicts are refused before any rank starts.
struct StrategyCapabilities {
  bool several_devices = false;
  bool several_nodes = false;
  bool half_precision = true;  ///< 16-true, bf16-true, 16-mixed, bf16-mixed
  bool manual_optimization = true;
  bool iterable_datasets = true;  ///< data of which nobody knows how much each rank has; see AccumulationWindow
};

/// The devices and ranks that a strategy runs on, and what else of the trainer's options it needs.
struct StrategySetup {
  std::vector<at::Device> devices = {};  ///< of this host, one for each local rank (or replica)
  bool devices_are_given = true;         ///< false: as many as the launcher has started ranks
  int64_t num_nodes = 1;
  bool sync_batchnorm = false;                    ///< BatchNorm takes its statistics over all ranks
  std::optional<at::ScalarType> mixed_type = {};  ///< in which forward and backward compute under mixed precision
  RankStatus* rank_status = nullptr;              ///< of this rank; lives longer than the strategy's helpers
};

/// Runs steps on devices and ranks. World size 1 is the identity. A strategy never sees a callback or a logger.
///
/// Most derive from RankedStrategy, or from a strategy that does, and override what a step is. What its state_dict
/// returns is kept of each rank by itself; a run with another number of ranks gives all of them that of rank 0.
class Strategy : public Configurable, public Stateful {
 public:
  /// The name in YAML.
  virtual std::string name() const = 0;
  virtual StrategyCapabilities capabilities() const { return {}; }

  // ---- Ranks.

  virtual Ranks& ranks() = 0;
  /// Interface of strategies that divide the model; that of whole models otherwise.
  virtual DividedModel& divided_model();
  /// Called by the trainer before each of its calls, in the process that made it: finds out which ranks there are.
  virtual void prepare(const StrategySetup& /*setup*/) {}
  /// The strategy object of another local rank where these are threads, sharing with this one what threads share; else
  /// nullptr.
  virtual std::shared_ptr<Strategy> for_thread_rank(int64_t /*local_rank*/) { return nullptr; }
  /// Joins the other ranks; called on every rank before anything else, and again for each further call of the trainer.
  virtual void setup_environment(const StrategySetup& setup) = 0;
  /// Part of each batch that this rank trains on, of how many. Ranks with the same one run the same batches.
  struct DataParallelRank {
    int64_t rank = 0;
    int64_t size = 1;
  };
  virtual DataParallelRank data_parallel_rank();
  /// The size of that on so many devices of so many hosts, for what is decided before there are ranks.
  virtual int64_t data_parallel_size(int64_t devices_of_host, int64_t hosts) const { return devices_of_host * hosts; }

  Launcher& launcher() { return ranks().launcher(); }
  ClusterEnvironment& environment() { return ranks().environment(); }
  const at::Device& root_device() { return ranks().device(); }
  Collective& collective() { return ranks().collective(); }
  ControlPlane* control_plane() { return ranks().control_plane(); }
  int64_t rank();
  int64_t world_size();
  bool is_global_zero() { return rank() == 0; }
  /// Gives every rank what rank 0 has; a collective.
  std::string broadcast(const std::string& value);
  /// Answers two questions at once, whether any rank says yes; a collective.
  std::pair<bool, bool> any_rank(bool first, bool second);

  // ---- Training.

  /// Moves the module to the device and wraps it, before configure_optimizers.
  virtual void setup_module(Module& module) = 0;
  /// Runs forward and backward of one batch; the default runs it once. A pipeline interleaves several parts of it.
  virtual StepOutput forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window);
  /// What the ranks told each other at the end of a window, beside its gradients.
  struct WindowTotals {
    LossWeight mean_weight = {};  ///< mean of StepPhases::window_weight over those whose gradients were averaged
    bool any_loss = true;         ///< false: known to have none
    bool any_next = true;         ///< a rank has data for another batch; only with AccumulationWindow::uneven_inputs
  };
  /// Returns those of the newest window; nothing where its gradients are this rank's alone.
  virtual std::optional<WindowTotals> window_totals() { return std::nullopt; }
  /// Runs a training step of a module that calls backward itself.
  virtual StepOutput manual_step(const Batch& batch, StepPhases& phases) { return phases.forward(batch); }
  /// Runs backward outside the automatic loop.
  virtual void manual_backward(const at::Tensor& loss, const BackwardOptions& options);
  /// Returns the parameters whose gradients the newest manual_backward has left for `combine_gradients`; where steps
  /// are recorded, ranks talk between their parts only.
  virtual std::vector<at::Tensor> uncombined() const { return {}; }
  /// Combines the gradients of these parameters over the ranks; called after each manual_backward.
  virtual void combine_gradients(const std::vector<at::Tensor>& /*parameters*/) {}
  /// Returns what records the steps of `graph`, or why they cannot be recorded. Called on the thread that trains.
  virtual GraphSupport graph_support();
  /// Factor of learning rates because of the number of ranks; 1 leaves them.
  virtual double learning_rate_scale() const { return 1; }
  /// Makes the state of the optimizers the same on all ranks, that of rank 0.
  virtual void broadcast_optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& /*optimizers*/) {}
  /// Makes steps from here on those of this rank alone, without any communication (`alone`), or of all ranks again.
  /// Either way the next step starts as the first one did: nothing that earlier ones left behind (buckets, a reduction
  /// half done) is used again. For dry runs, of which one may fail on one rank only. Called outside steps, on all
  /// ranks.
  virtual void restart_steps(bool /*alone*/) {}

  // ---- Evaluation and the end.

  /// Gives every rank rank 0's version of what each has its own of (running statistics), which a checkpoint has, before
  /// a validation or test. All ranks call it.
  virtual void prepare_evaluation(Module& /*module*/) {}
  /// Runs one batch of validation or test.
  virtual StepOutput evaluate(const Batch& batch, StepPhases& phases) { return phases.forward(batch); }
  /// Ends a call, also after an error.
  virtual void teardown() {}
};

}  // namespace levin
