#pragma once

#include <levin/core/base/state.h>
#include <levin/core/data/batch.h>
#include <levin/core/interfaces/parallel_model.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace levin {

class Module;

/// Interface of strategies that divide the model over ranks: which parts this one holds, and a forward that is a
/// collective. The defaults are those of all other strategies, whose ranks have the whole model each.
class DividedModel {
 public:
  virtual ~DividedModel() = default;

  // ---- Set-up.

  /// Opens a scope around configure_model: what is built while it lives may be divided over the ranks at once.
  /// `prepare` converts a part of the module before that.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): strategies that need it keep it
  virtual std::shared_ptr<void> build_scope(std::function<void(torch::nn::Module&)> /*prepare*/) { return nullptr; }
  /// Called before setup_module where there is training to come: gives the first batch of it, on the device.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): strategies that need it keep it
  virtual void set_sample(std::function<Batch()> /*sample*/) {}
  /// Makes the module an ordinary one again; the call has ended well, on all ranks.
  virtual void release_module() {}

  // ---- What optimizers step.

  /// The parts of the model that this rank holds, from setup_module to the end of the call.
  const ParallelModel& parallel_model() const { return parallel_model_; }
  /// Throws ConfigError for an optimizer that it cannot work with, before anything is replaced.
  virtual void check_optimizer(const torch::optim::Optimizer& /*optimizer*/) {}
  /// Called by all ranks before and after an optimizer's step, when the gradients of its window are there.
  virtual void prepare_step() {}
  virtual void finish_step() {}
  /// Called by all ranks when something other than an optimizer's step has changed the shards.
  virtual void shards_changed() {}

  // ---- Forwards and outputs.

  /// Whether all ranks must run each forward together: one that has no data joins with another rank's batch.
  virtual bool forwards_together() const { return false; }
  /// Opens a scope around a forward that is none of a step: prediction. All ranks run it.
  virtual std::shared_ptr<void> forward_scope() { return nullptr; }
  /// Gathers the parameters of a module of the trained one where ranks divide them, until what is returned goes; see
  /// Trainer::full_parameters.
  virtual std::shared_ptr<void> full_parameters(const torch::nn::Module& /*module*/) { return nullptr; }
  /// Whether this rank has outputs of its own part of the data; elsewhere logs, metrics and predictions do not count.
  virtual bool owns_outputs() const { return true; }
  /// Whether all ranks have outputs. If not, all that is logged is synchronised over ranks.
  virtual bool outputs_everywhere() const { return true; }

  // ---- State.

  /// See ParallelModel.
  virtual State module_state(Module& module) { return parallel_model_.module_state(module); }
  virtual void load_module_state(Module& module, const State& state) {
    parallel_model_.load_module_state(module, state);
  }
  /// Whether a checkpoint's weights load before setup_module (whole) or after (sharded).
  virtual bool loads_weights_before_setup() const { return true; }
  /// Whether ranks have different parts of the module or of the optimizers' state: they save and load together then,
  /// between two accumulation windows.
  virtual bool divides_state() const { return false; }
  /// Whether gradients of a manual_backward without `sync_grad` wait for the one that combines them, which checkpoints
  /// do then, too.
  virtual bool keeps_gradients_back() const { return false; }
  /// Drops such gradients, but those of these local shards: zero_grad has cleared what they would be added to.
  virtual void drop_kept_gradients(const std::vector<at::Tensor>& /*but_of*/) {}
  /// Combines them, as the next manual_backward with `sync_grad` would. Collective.
  virtual void combine_kept_gradients() {}
  /// See ParallelModel.
  virtual State place_optimizer_state(State state) const { return parallel_model_.place_optimizer_state(state); }
  virtual State own_optimizer_state(const State& saved) const { return parallel_model_.own_optimizer_state(saved); }

 protected:
  /// Takes what this rank holds from here on; by default all of the model.
  void hold(ParallelModel parts = {}) { parallel_model_ = std::move(parts); }

 private:
  ParallelModel parallel_model_;
};

}  // namespace levin
