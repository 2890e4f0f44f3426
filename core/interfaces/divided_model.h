#pragma once

#include <levin/core/base/state.h>
#include <levin/core/data/batch.h>
#include <levin/core/optim/parameter_names.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace levin {

class Module;

/// Interface of strategies that divide the model over ranks: views for the optimizer, state that is placed, a forward
/// that is a collective. The defaults are those of all other strategies, whose ranks have the whole model each.
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

  /// Gives what an optimizer steps in place of a parameter of the module: this rank's shard of it.
  virtual at::Tensor local_shard(const at::Tensor& parameter) { return parameter; }
  /// Gives the names of what optimizers step: each shard has its parameter's.
  virtual optim::ParameterNames parameter_names(const Module& module);
  /// Throws ConfigError for an optimizer that it cannot work with, before anything is replaced.
  virtual void check_optimizer(const torch::optim::Optimizer& /*optimizer*/) {}
  /// Called by all ranks before and after an optimizer's step, when the gradients of its window are there.
  virtual void prepare_step() {}
  virtual void finish_step() {}
  /// Called by all ranks when something other than an optimizer's step has changed the shards.
  virtual void shards_changed() {}
  /// Combines StepScaling::found_inf of this rank's part of the gradients over all ranks, in place.
  virtual void combine_found_inf(at::Tensor& /*found_inf*/) {}
  /// Combines norms of this rank's shards, as many on every rank, into the norms of the whole tensors. `order`: 1, 2 or
  /// infinity.
  virtual at::Tensor reduce_norm(at::Tensor norms, double /*order*/) { return norms; }
  /// Clips the gradients of what the optimizer steps; see optim::clip_adaptively.
  virtual void clip_adaptively(const std::vector<at::Tensor>& parameters, double ratio);

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

  /// Gives parameters and buffers by name, placed as this strategy holds them.
  virtual State module_state(Module& module);
  /// Copies saved parameters and buffers into the module, in place; see load_named_tensors.
  virtual void load_module_state(Module& module, const State& state);
  /// Whether a checkpoint's weights load before setup_module (whole) or after (sharded).
  virtual bool loads_weights_before_setup() const { return true; }
  /// Whether ranks have different parts of the module or of the optimizers' state: they save and load together then,
  /// between two accumulation windows.
  virtual bool divides_state() const { return false; }
  /// Whether gradients of a manual_backward without `sync_grad` wait for the one that combines them, which checkpoints
  /// do then, too.
  virtual bool keeps_gradients_back() const { return false; }
  /// Adds to an optimizer's state what other ranks must know of this rank's part of it. `state`: from
  /// optim::optimizer_state_dict, or any whose `parameters` hold, by name, a map of fields for each.
  virtual State place_optimizer_state(State state) const { return state; }
  /// Gives this rank's part of a state that was saved by any strategy.
  virtual State own_optimizer_state(const State& saved) const { return saved; }
};

/// Throws levin::Error naming what a saved module_state lacks, has left over or has in another shape.
void check_named_tensors(const Module& module, const State& state);
/// Copies tensors by name into the module's parameters and buffers, in place, after check_named_tensors.
void load_named_tensors(Module& module, const State& state);

}  // namespace levin
