#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/whereabouts.h>
#include <levin/core/data/batch.h>
#include <levin/core/devices/graph_recorder.h>
#include <levin/core/interfaces/backward_options.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/core/optim/parameter_names.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace levin {

class ClusterEnvironment;
class ControlPlane;
class Launcher;
class Module;

/// The parts of one micro-batch's step, in the order in which a strategy must call them; the loop implements them.
class StepPhases {
 public:
  virtual ~StepPhases() = default;
  /// The rank's own module.
  virtual Module& module() = 0;
  /// training_step, validation_step or test_step of a module, the rank's own or a replica, under the precision's
  /// forward scope. May run on any thread.
  virtual StepOutput step(Module& module, const Batch& batch) = 0;
  /// training_step_end and the like, once a micro-batch, over the whole output.
  virtual StepOutput step_end(StepOutput output) = 0;
  /// The whole forward part where there are no replicas.
  StepOutput forward(const Batch& batch) { return step_end(step(module(), batch)); }
  /// Hooks before the gradients of a window are cleared, and before backward. Training only, as all that follows.
  virtual void before_backward(StepOutput& output) = 0;
  virtual void backward(StepOutput& output) = 0;
  virtual void after_backward() = 0;
  /// While it lives, as a step is: for a forward of a part of the module outside of `step`.
  virtual std::shared_ptr<void> forward_scope() = 0;
};

/// What a strategy must know of the micro-batch's place in its accumulation window.
struct StepWindow {
  bool sync = true;   ///< the last of the window: gradients are combined over ranks
  int64_t index = 0;  ///< of the micro-batch in the window
  int64_t size = 1;   ///< micro-batches in the window
  /// Ranks may run out of data at different times, and nobody knows when: the strategy finds out, with what it reduces
  /// anyway, how many ranks took part (see Strategy::participation).
  bool counts_participants = false;
  double participation = 1;  ///< of this rank in this micro-batch: 1, less for a small last batch, 0 without data
  bool has_next = true;      ///< whether this rank has data for the micro-batch after this one
};

/// What a strategy can do; conflicts are refused before any rank starts.
struct StrategyCapabilities {
  bool several_devices = false;
  bool several_nodes = false;
  bool half_precision = true;  ///< 16-true, bf16-true, 16-mixed, bf16-mixed
  bool manual_optimization = true;
  bool several_optimizers = true;
  bool iterable_datasets = true;
};

/// The devices and ranks that a strategy runs on, and what else of the trainer's options it needs.
struct StrategySetup {
  std::vector<at::Device> devices = {};  ///< of this host, one for each local rank (or replica)
  bool devices_are_given = true;         ///< false: as many as the launcher has started ranks
  int64_t num_nodes = 1;
  bool sync_batchnorm = false;                    ///< BatchNorm takes its statistics over all ranks
  std::optional<at::ScalarType> mixed_type = {};  ///< in which forward and backward compute under mixed precision
  Whereabouts* whereabouts = nullptr;             ///< of this rank; lives longer than the strategy's helpers
};

/// How a step runs on devices and ranks. World size 1 is the identity. A strategy never sees a callback or a logger.
class Strategy : public Buildable {
 public:
  /// The name in YAML.
  virtual std::string name() const = 0;
  virtual StrategyCapabilities capabilities() const { return {}; }
  /// Called by the trainer before each of its calls, in the process that made it: finds out which ranks there are.
  virtual void prepare(const StrategySetup& /*setup*/) {}
  /// What starts this strategy's ranks.
  virtual Launcher& launcher() = 0;
  /// Who this process is in the job.
  virtual ClusterEnvironment& environment() = 0;

  /// The first call in every local rank: from here on this object is that rank's.
  virtual void enter_rank(int64_t /*local_rank*/) {}
  /// Whether the local ranks are threads of one process.
  virtual bool ranks_are_threads() const { return false; }
  /// The strategy object of another local rank where they are, sharing with this one what threads share; else nullptr.
  virtual std::shared_ptr<Strategy> for_thread_rank(int64_t /*local_rank*/) { return nullptr; }

  /// Joins the other ranks; called on every rank before anything else, and again for each further call of the trainer.
  virtual void setup_environment(const StrategySetup& setup) = 0;
  virtual const at::Device& root_device() const = 0;
  virtual Collective& collective() = 0;
  int64_t rank();
  int64_t world_size();
  bool is_global_zero() { return rank() == 0; }
  /// Gives every rank what rank 0 has; a collective.
  std::string broadcast(const std::string& value);
  /// Answers two questions at once, whether any rank says yes; a collective.
  std::pair<bool, bool> any_rank(bool first, bool second);
  /// Which part of the data this rank runs, of how many. Ranks of one index run the same batches.
  struct DataShare {
    int64_t index = 0;
    int64_t count = 1;
  };
  virtual DataShare data_share();
  /// nullptr while there is one rank.
  virtual ControlPlane* control_plane() { return nullptr; }

  /// Around configure_model: what is built while it lives may be divided over the ranks at once. `prepare` converts a
  /// part of the module before that.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): strategies that need it keep it
  virtual std::shared_ptr<void> build_scope(std::function<void(torch::nn::Module&)> /*prepare*/) { return nullptr; }
  /// Called before setup_module where there is training to come: gives the first batch of it, on the device.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): strategies that need it keep it
  virtual void set_sample(std::function<Batch()> /*sample*/) {}
  /// Moves the module to the device and wraps it, before configure_optimizers.
  virtual void setup_module(Module& module) = 0;
  /// What an optimizer steps in place of a parameter of the module.
  virtual at::Tensor stand_in(const at::Tensor& parameter) { return parameter; }
  /// Names of what optimizers step: each stand-in has its parameter's.
  virtual optim::ParameterNames parameter_names(const Module& module);
  /// Throws ConfigError for an optimizer that it cannot work with, before anything is replaced.
  virtual void check_optimizer(const torch::optim::Optimizer& /*optimizer*/) {}
  /// Whether a checkpoint's weights load before setup_module (whole) or after (sharded).
  virtual bool loads_weights_before_setup() const { return true; }

  /// Runs one micro-batch; the default runs it once. A pipeline interleaves several.
  virtual StepOutput forward_backward(const Batch& batch, StepPhases& phases, const StepWindow& window);
  /// What the ranks told each other in the window just reduced, where it counts participants.
  struct Participation {
    double mean = 1;       ///< of the ranks and micro-batches of the window; 0: there was no data at all
    bool any_next = true;  ///< a rank has data for another micro-batch
  };
  virtual Participation participation() { return {}; }
  /// Runs a training step of a module that calls backward itself.
  virtual StepOutput manual_step(const Batch& batch, StepPhases& phases) { return phases.forward(batch); }
  /// Runs backward outside the automatic loop.
  virtual void manual_backward(const at::Tensor& loss, const BackwardOptions& options);
  /// What records the steps of `cuda_graph`, or why they cannot be recorded. Called on the thread that trains.
  virtual GraphSupport graph_support();
  /// What learning rates are multiplied by because of the number of ranks; 1 leaves them.
  virtual double learning_rate_scale() const { return 1; }
  /// Makes the state of the optimizers the same on all ranks, that of rank 0.
  virtual void broadcast_optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& /*optimizers*/) {}

  /// Before a validation or test: what every rank has a version of its own of (running statistics) becomes rank 0's,
  /// which a checkpoint has. All ranks call it.
  virtual void prepare_evaluation(Module& /*module*/) {}
  /// Runs one batch of validation or test.
  virtual StepOutput evaluate(const Batch& batch, StepPhases& phases) { return phases.forward(batch); }
  /// Combines norms of this rank's parts of tensors, as many on every rank, into the norms of the whole ones. `order`:
  /// 1, 2 or infinity.
  virtual at::Tensor reduce_norm(at::Tensor norms, double /*order*/) { return norms; }
  /// See optim::clip_adaptively; of what the optimizer steps.
  virtual void clip_adaptively(const std::vector<at::Tensor>& parameters, double ratio);
  /// Around an optimizer's step, when the gradients of its window are there: all ranks call these.
  virtual void prepare_step() {}
  virtual void finish_step() {}
  /// Something other than an optimizer's step has changed what `stand_in` gave: all ranks call it.
  virtual void stand_ins_changed() {}
  /// A word on this rank's part of the gradients (StepScaling::found_inf) becomes that on all of them, in place.
  virtual void combine_found_inf(at::Tensor& /*found_inf*/) {}
  /// Whether all ranks must run each forward together: one that has no data runs it on a batch that stands in.
  virtual bool forwards_together() const { return false; }
  /// Whether this rank has outputs of its own share of the data; elsewhere logs, metrics and predictions do not count.
  virtual bool owns_outputs() const { return true; }
  /// Whether all ranks do. If not, all that is logged is synchronised over ranks.
  virtual bool outputs_everywhere() const { return true; }

  /// Parameters and buffers by name, placed as this strategy holds them.
  virtual State module_state(Module& module);
  /// Copies them in place; see load_named_tensors.
  virtual void load_module_state(Module& module, const State& state);
  /// Whether ranks have different parts of the module or of the optimizers' state: they save and load together then,
  /// between two accumulation windows.
  virtual bool divides_state() const { return false; }
  /// An optimizer's state (optim::optimizer_state_dict), or what has `parameters` as it, by name a map of fields for
  /// each, with what other ranks must know of this rank's part of it.
  virtual State place_optimizer_state(State state) const { return state; }
  /// This rank's part of a state that was saved by any strategy.
  virtual State own_optimizer_state(const State& saved) const { return saved; }

  /// Around a forward that is none of a step above: prediction. All ranks run it.
  virtual std::shared_ptr<void> forward_scope() { return nullptr; }
  /// The call has ended well, on all ranks: the module becomes an ordinary one again.
  virtual void release_module() {}
  virtual void teardown() {}

  /// From here on steps are of this rank alone, without any communication (`alone`), or of all ranks again. Either way
  /// the next step starts as the first one did: nothing that earlier ones left behind (buckets, a reduction half done)
  /// is used again. For trials, of which one may fail on one rank only. Called outside steps, on all ranks.
  virtual void restart_steps(bool /*alone*/) {}
};

/// Throws levin::Error naming what a saved module_state lacks, has left over or has in another shape.
void check_named_tensors(const Module& module, const State& state);
/// Copies tensors by name into the module's parameters and buffers, in place, after check_named_tensors.
void load_named_tensors(Module& module, const State& state);

}  // namespace levin
