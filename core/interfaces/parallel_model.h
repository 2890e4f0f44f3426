#pragma once

#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/interfaces/parameter_part.h>
#include <levin/core/optim/parameter_names.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace levin {

class Module;

/// What this rank holds of a model: the local shard that optimizers step instead of each parameter, and which part of
/// the whole tensor that is. What optimizers, clipping and checkpoints do over the ranks follows from it, for all
/// strategies alike.
class ParallelModel {
 public:
  struct Entry {
    std::string name;
    at::Tensor parameter = {};  ///< of the module; undefined for a buffer
    ParameterPart part;
    bool is_copy = false;  ///< another rank of the group has the same part, which norms count instead of this one
  };
  struct Ranks {
    std::shared_ptr<Collective> group = nullptr;  ///< those with other parts; nullptr: this one has all of them
    at::Device device{at::kCPU};                  ///< where their collectives run
    bool divide_tensors = false;                  ///< among each other; false: each tensor is whole on one rank
  };

  /// All of the model, on each rank.
  ParallelModel() = default;
  /// Tensors of the module that are not among the entries are the same on all ranks. `component`: as messages name it.
  ParallelModel(std::string component, std::vector<Entry> entries, Ranks ranks);

  // ---- What optimizers step.

  /// Gives what an optimizer steps instead of a parameter of the module: this rank's shard of it. Throws levin::Error
  /// for a tensor that is no parameter of a divided module.
  at::Tensor local_shard(const at::Tensor& parameter) const;
  /// Gives the names of what optimizers step: each shard has its parameter's.
  optim::ParameterNames parameter_names(const Module& module) const;
  /// Those of a divided model; none of a whole one.
  const optim::ParameterNames& shard_names() const { return names_; }
  /// Combines StepScaling::found_inf of this rank's part of the gradients over all ranks, in place.
  void combine_found_inf(at::Tensor& found_inf) const;
  /// Gives the 2-norm of the whole tensors' gradients, of those that the optimizer steps; see optim::gradient_norm.
  at::Tensor gradient_norm(const std::vector<at::Tensor>& local_shards) const;
  /// Combines norms of this rank's shards, as many on every rank, one of each, into the norms of the whole tensors.
  /// `order`: 1, 2 or infinity.
  at::Tensor reduce_norms(at::Tensor norms, const std::vector<at::Tensor>& local_shards, double order) const;
  /// Clips the gradients of what the optimizer steps by the norms of the whole parameters' rows; see
  /// optim::clip_adaptively. Where ranks divide tensors a collective, and all have gradients of the same ones.
  void clip_adaptively(const std::vector<at::Tensor>& local_shards, double ratio) const;

  // ---- State.

  /// Gives parameters and buffers by name, each part with its place.
  State module_state(const Module& module) const;
  /// Copies saved parameters and buffers into the module, in place, this rank's parts alone; see load_named_tensors.
  void load_module_state(Module& module, const State& state) const;
  /// Adds to an optimizer's state what other ranks must know of this rank's part of it. `state`: from
  /// optim::optimizer_state_dict, or any whose `parameters` hold, by name, a map of fields for each. Tensors of other
  /// sizes than the part, such as a value for each row, count as those of the rank that has the parameter's first
  /// element.
  State place_optimizer_state(const State& state) const;
  /// Gives this rank's part of a state that was saved by any strategy.
  State own_optimizer_state(const State& saved) const;

 private:
  const Entry* find(const std::string& name) const;
  bool is_copy(const at::Tensor& local_shard) const;
  at::Tensor sum_norms(const at::Tensor& norms, double order) const;
  void clip_parts_adaptively(const std::vector<at::Tensor>& local_shards, double ratio) const;

  std::string component_;
  std::vector<Entry> entries_;
  Ranks ranks_;
  std::unordered_map<std::string, size_t> by_name_;
  std::unordered_map<const void*, size_t> by_parameter_;  ///< by the TensorImpl
  optim::ParameterNames names_;
  bool has_copies_ = false;
};

/// Throws levin::Error naming what a saved module_state lacks, has left over or has in another shape.
void check_named_tensors(const Module& module, const State& state);
/// Copies tensors by name into the module's parameters and buffers, in place, after check_named_tensors.
void load_named_tensors(Module& module, const State& state);

}  // namespace levin
