#pragma once

#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/interfaces/parallel_model.h>
#include <levin/core/interfaces/parameter_part.h>
#include <levin/strategies/pipeline/replica_gradients.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

/// The parameters and buffers of a module that is cut into stages, as the rank of one stage sees them. Each belongs to
/// one stage, whose optimizer steps it and which saves it. Those that several stages use (weights that are tied, or
/// that lie outside of the chain that is cut) are copied to all of these: their gradients are added up for the stage
/// that they belong to, and their values sent from there. The memory of all others is given back.
///
/// Ranks of the same stage in pipelines side by side average gradients: ReplicaGradients. Of those that divide the
/// optimizer's state, each steps its part of every parameter, or some parameters, and gets the others afterwards (stage
/// 1 of Rajbhandari et al., "ZeRO", 2020, arXiv:1910.02054).
///
/// Methods marked "collective" are called by the ranks of all stages in the same order.
class StageParameters {
 public:
  /// Who divides parameters that one chunk of this stage alone uses, where `shards` divide state.
  enum class Division {
    kOptimizerState,  ///< this object: parameters and gradients are whole on every rank
    kByChunk          ///< a ShardedModel of each chunk: see `of_chunks`
  };
  struct Users {
    /// The stages that use a tensor of the module, the first of which it belongs to; none: all of them, and it belongs
    /// to the last.
    std::set<int64_t> stages;
    /// Where one element alone uses it: the chunk of that element.
    std::optional<int64_t> chunk;
  };
  using UsersOf = std::function<Users(const at::Tensor& tensor)>;

  /// Every rank has the same values. Those that this rank uses move to its device. `stages`: a group in which the rank
  /// of each stage is its number.
  StageParameters(const torch::nn::Module& module, const at::Device& device, const UsersOf& users_of,
                  std::shared_ptr<Collective> stages, StageGroups groups, Division division);

  /// Whether a parameter belongs to this stage.
  bool is_own(const at::Tensor& parameter) const;
  /// By chunk: the parameters, by TensorImpl, that this object leaves to another division.
  std::map<int64_t, std::unordered_set<const void*>> of_chunks() const;
  /// Whether some parameter of the module stays whole because several stages use it; the same on every stage.
  bool has_shared_parameters() const;
  /// Takes over what optimizers step instead of them.
  void set_local_shards(const std::vector<ParallelModel::Entry>& of_chunks);

  /// What optimizers step instead of each parameter: itself (or this rank's part of it, flat) where it belongs to this
  /// stage, else a tensor without elements, so that optimizers have the same groups on all ranks; and the buffers.
  std::vector<ParallelModel::Entry> entries() const;

  /// Where ranks divide the optimizer's state, each steps whole parameters from here on, for optimizers that need them.
  /// Before an optimizer has local shards; the entries are other ones afterwards.
  void divide_by_tensor();

  /// Averages gradients over replicas, while the last batch of a window runs; nullptr where there are none.
  ReplicaGradients* replica_gradients() { return replica_gradients_.get(); }
  /// Drops gradients that no optimizer of this rank has: their window was left without a step.
  void drop_gradients();
  /// Combines gradients at the end of a window; collective. Shards of other stages get gradients without elements.
  void combine_gradients();
  /// Gives replicas the buffers (running statistics) of the first one, which a checkpoint has; collective.
  void send_buffers_to_replicas();
  /// Sends parameters after what optimizers step has changed; collective.
  void send_parameters() { send(/*buffers=*/false); }
  /// Sends parameters and buffers after values were loaded; collective.
  void send_all() { send(/*buffers=*/true); }
  /// Gives all values of a parameter of the module, on any device, where those that the stages have are a share of
  /// them; collective.
  using WholeOf = std::function<at::Tensor(const at::Tensor& parameter, const at::Tensor& values)>;
  /// Gives the module all values again, on the host: a device may not have room for them; collective, and the last
  /// call. Without `whole_of` the stages have them.
  void gather_full_parameters(const WholeOf& whole_of = {});

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;       ///< of the module
    at::Tensor local_shard;  ///< where it belongs to this stage: the tensor itself, or a view of this rank's part
    int64_t offset;          ///< of the first element of `local_shard`
    int64_t owner;           ///< the stage that it belongs to
    int64_t chunk;           ///< see ReplicaGradients::Parameter
    std::optional<int64_t> shard_owner = {};  ///< of the ranks that divide state, the one that steps all of it
    bool is_parameter;
    bool is_shared;     ///< by several stages
    bool is_used_here;  ///< has values
    bool is_left_to_chunk = false;
    std::optional<ParameterPart> part_of_chunk = {};  ///< where it is left to one
  };

  void make_replica_gradients();
  void send(bool buffers);
  bool is_own(const Entry& entry) const { return entry.owner == stages_->rank(); }
  bool divides(const Entry& entry) const { return entry.is_parameter && is_own(entry) && !entry.is_left_to_chunk; }
  /// Of the parameters that this stage steps and this object divides, by type.
  std::map<at::ScalarType, std::vector<Entry*>> own_parameters();
  void gather_parts();

  std::shared_ptr<Collective> stages_;
  const StageGroups groups_;
  std::unique_ptr<ReplicaGradients> replica_gradients_;
  std::vector<Entry> entries_;
};

}  // namespace levin
