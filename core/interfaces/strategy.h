#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/data/batch.h>
#include <levin/core/interfaces/step_output.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace levin {

class ClusterEnvironment;
class Launcher;
class Module;

/// The parts of one micro-batch's step, in the order in which a strategy must call them; the loop implements them.
class StepPhases {
 public:
  virtual ~StepPhases() = default;
  /// training_step and training_step_end under the precision's forward scope.
  virtual StepOutput forward(const Batch& batch) = 0;
  /// Hooks before the gradients of a window are cleared, and before backward.
  virtual void before_backward(StepOutput& output) = 0;
  virtual void backward(StepOutput& output) = 0;
  virtual void after_backward() = 0;
};

/// What a strategy must know of the micro-batch's place in its accumulation window.
struct StepWindow {
  bool sync = true;   ///< the last of the window: gradients are combined over ranks
  int64_t index = 0;  ///< of the micro-batch in the window
  int64_t size = 1;   ///< micro-batches in the window
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

/// The devices and ranks that a strategy runs on.
struct StrategySetup {
  std::vector<at::Device> devices;  ///< of this process
  int64_t num_nodes = 1;
};

/// How a step runs on devices and ranks. World size 1 is the identity. A strategy never sees a callback or a logger.
class Strategy : public Buildable {
 public:
  /// The name in YAML.
  virtual std::string name() const = 0;
  virtual StrategyCapabilities capabilities() const { return {}; }
  /// What starts this strategy's ranks.
  virtual Launcher& launcher() = 0;
  /// Who this process is in the job.
  virtual ClusterEnvironment& environment() = 0;

  /// Joins the other ranks; called on every rank before anything else.
  virtual void setup_environment(const StrategySetup& setup) = 0;
  virtual const at::Device& root_device() const = 0;
  virtual Collective& collective() = 0;

  /// Moves the module to the device and wraps it, before configure_optimizers.
  virtual void setup_module(Module& module) = 0;
  /// May replace the parameters in the groups of the optimizers.
  virtual void setup_optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& /*optimizers*/) {}
  /// Whether a checkpoint's weights load before setup_module (whole) or after (sharded).
  virtual bool loads_weights_before_setup() const { return true; }

  /// Runs one micro-batch; the default runs it once. A pipeline interleaves several.
  virtual StepOutput forward_backward(const Batch& batch, StepPhases& phases, const StepWindow& window);
  /// Combines a norm of this rank's part of the gradients into the norm of all of them.
  virtual at::Tensor reduce_norm(at::Tensor norm) { return norm; }
  /// Whether this rank holds the model's outputs: elsewhere logs and metrics are muted.
  virtual bool owns_outputs() const { return true; }

  /// Parameters and buffers by name, placed as this strategy holds them.
  virtual State module_state(Module& module);
  /// Copies them in place; see load_named_tensors.
  virtual void load_module_state(Module& module, const State& state);

  virtual void teardown() {}
};

/// Copies tensors by name into the module's parameters and buffers, in place. Throws levin::Error naming what is
/// missing, left over or of another shape, before anything has changed.
void load_named_tensors(Module& module, const State& state);

}  // namespace levin
