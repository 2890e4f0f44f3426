#pragma once

#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/interfaces/parallel_model.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/saved_tensor_scope.h>
#include <levin/core/nn/unit.h>
#include <levin/strategies/sharded/execution_order.h>
#include <levin/strategies/sharded/flat_parameter_group.h>
#include <levin/strategies/sharded/sharded_build.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

struct ShardedModelOptions {
  int64_t stage = 3;  ///< 1: optimizer state, 2: gradients too, 3: parameters too
  /// Type of full parameters and gradients; unset: that of the parameters
  std::optional<at::ScalarType> compute_type = {};
  std::optional<at::ScalarType> reduce_type = {};  ///< type in which gradients are averaged; unset: theirs
  /// Those that are divided, by TensorImpl, where a strategy leaves out others; unset: all
  std::optional<std::unordered_set<const void*>> parameters = {};
  std::vector<NamedUnit> units = {};  ///< stage 3: units that are gathered by themselves, parents before their children
  int64_t min_elements = 0;           ///< a unit with fewer parameters goes with the unit around it
  int64_t bucket_bytes = int64_t{25} << 20;  ///< stages 1 and 2: bytes of gradients that are averaged at once
  int64_t prefetch = 1;                      ///< units that are gathered before they are needed
  bool offload = false;                      ///< see ShardingOptions
  bool finds_unused = false;                 ///< parameters that no rank's loss depends on keep their values
  bool keeps_window_gradients = false;       ///< full gradients stay until the end of an accumulation window

  /// Makes the options of parameters that an optimizer holds in this type. `computes`: forward and backward use
  /// `compute_type`; those of BatchNorm do not, whose running statistics have the optimizer's type.
  ShardingOptions sharding(at::ScalarType optimizer_type, bool computes = true) const;
};

/// A module whose optimizer state, gradients and parameters are divided over the ranks of a group, as the stage says.
/// In stage 3 the parameters of a unit are whole while it runs, forward and backward; those outside of units, and those
/// that several units share, during the whole step.
///
/// Calls between `begin_` and `end_` are one pass; all ranks run the same passes over the same units. Units that all
/// ranks call outside of a pass, in hooks, gather their parameters for the call.
class ShardedModel final : private UnitHook {
 public:
  /// Every rank has the same values. `replicas`: see FlatParameterGroup. `built`: units that are divided already.
  ShardedModel(torch::nn::Module& module, std::shared_ptr<Collective> group, std::shared_ptr<Collective> replicas,
               ShardedModelOptions options, std::vector<ShardedBuild::Part> built = {});
  /// The module keeps what it has: full parameters only after `gather_full_parameters`.
  ~ShardedModel() override;
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  // ---- A step

  void begin_forward(bool training);
  void end_forward();
  /// While it exists, backward gathers the parameters that operations of this thread save for it, as soon as one of
  /// them asks: whatever units return. On the thread of the forward. nullptr below stage 3, and within another such
  /// scope: activation checkpointing repeats forwards, which gather for themselves.
  std::unique_ptr<SavedTensorScope> saved_tensor_scope();
  /// Begins a backward; forwards of other micro-batches may have been since its own. `sync`: the micro-batch ends its
  /// window.
  void begin_backward(bool sync);
  /// Whether gradients wait for the end of their window, unreduced; drops them, but those of these local shards; and
  /// reduces them. The last is collective.
  bool has_kept_gradients() const;
  void drop_kept_gradients(const std::vector<at::Tensor>& but_of = {});
  void reduce_kept_gradients();
  /// Ends it: the local shards then have gradients, unless an accumulation window keeps them back. `in_step`: more
  /// forwards may follow before the step ends, as in manual optimization.
  void end_backward(bool in_step = false);
  /// Whether a backward with this `sync` needs all ranks.
  bool backward_is_collective(bool sync) const;
  /// Stands in for a backward on a rank whose batch was skipped: does what the others' backward makes them do together.
  void backward_without_loss();
  /// Ends a pass after an exception.
  void abandon() noexcept;
  /// Converts gradients to the type of the optimizer, before its step.
  void prepare_step();
  /// Called when the optimizer has stepped.
  void finish_step();

  /// Gathers all parameters of a module, in the type that the model computes with, until what is returned goes.
  /// Collective. Each rank keeps its part of what was written to them.
  std::shared_ptr<void> full_parameters(const torch::nn::Module& module);
  /// Takes what the program has written to full parameters into the local shards.
  void take_changes();

  // ---- What optimizers and checkpoints see

  /// The local shards, which optimizers step instead of the parameters.
  std::vector<ParallelModel::Entry> entries() const;
  /// Divides the parameters anew: each belongs whole to one rank, for optimizers that need whole tensors. Collective,
  /// before an optimizer has local shards; the entries are other ones afterwards.
  void divide_by_tensor();
  /// Gives the module full parameters, of the optimizer's type, for good; a collective. Nothing else may follow.
  void gather_full_parameters();
  /// Called when others than the optimizer have changed the local shards.
  void local_shards_changed() { finish_step(); }

 private:
  enum class Pass { kNone, kForward, kBackward };
  class TakeGradient;
  class SavedTensor;
  class SavedTensors;
  /// What a backward did with other ranks.
  struct Event {
    enum class Kind { kGather, kRelease, kReduce } kind;
    size_t group;
  };
  struct WholeStep {
    int64_t units_called = 0;
    std::vector<Event> events;  ///< in their order
  };

  struct Found;
  static std::vector<Found> all_parameters(const torch::nn::Module& module);
  void adopt(torch::nn::Module& module, std::vector<ShardedBuild::Part> built, const std::vector<Found>& found);
  void divide(torch::nn::Module& module, std::vector<ShardedBuild::Part> built);
  void before_forward(UnitCall& call) override;
  void after_forward(UnitCall& call) override;
  bool reduces(bool sync) const;
  void unshard(size_t group);
  void gather_for_backward(size_t group);
  void gather_saved(size_t group);
  /// Whether someone has asked for its parameters with full_parameters.
  bool is_held(size_t group) const { return held_.contains(group); }
  void on_gradient(size_t group, size_t parameter);
  void start_reduces();
  void start_unshard(size_t group);
  void reshard(size_t group);
  void release_held_back(size_t but_for);
  void finish_reduces(size_t left);
  void reduce_gradients();
  std::optional<WholeStep>& newest_step() { return reduces_ ? reducing_step_ : keeping_step_; }
  void drop_unused();
  ExecutionOrder& order() {
    return pass_ == Pass::kBackward ? backward_order_ : training_ ? forward_order_ : other_order_;
  }
  std::string group_name(int64_t group) const;

  std::shared_ptr<Collective> group_;
  std::shared_ptr<Collective> replicas_;
  const ShardedModelOptions options_;
  std::vector<std::unique_ptr<FlatParameterGroup>> groups_;
  bool by_tensor_ = false;                                          ///< each parameter belongs whole to one rank
  std::vector<size_t> always_whole_;                                ///< stage 3: groups of no unit of their own
  std::unordered_map<const Unit*, size_t> of_unit_;                 ///< stage 3
  std::unordered_map<const c10::StorageImpl*, size_t> of_storage_;  ///< stage 3
  std::vector<size_t> reduce_order_;                                ///< groups with parameters that are trained
  std::vector<at::Tensor> hooked_;                                  ///< parameters that tell of their gradients

  std::multiset<size_t> held_;

  /// Graphs that outlive the model see that it is gone.
  std::shared_ptr<ShardedModel*> self_ = std::make_shared<ShardedModel*>(this);

  Pass pass_ = Pass::kNone;
  bool training_ = false;
  bool reduces_ = false;  ///< gradients of this backward are reduced
  ExecutionOrder forward_order_;
  ExecutionOrder other_order_;  ///< of forwards without backward
  ExecutionOrder backward_order_;
  std::vector<bool> ready_;        ///< groups whose gradients are all taken
  std::vector<size_t> held_back_;  ///< of these, those with frozen parameters, which the rest of their unit may need
  size_t next_reduce_ = 0;         ///< into reduce_order_
  std::deque<size_t> reducing_;
  std::vector<std::vector<bool>> used_;  ///< by the window so far on this rank: of each group, by parameter
  int64_t units_called_ = 0;             ///< in the forward under way
  bool order_is_new_ = true;  ///< no forward came before it, so that this one leaves other units behind than later ones
  std::optional<WholeStep> reducing_step_;  ///< the newest one that reduced gradients
  std::optional<WholeStep> keeping_step_;   ///< the newest one that did not
  std::vector<Event> new_events_;           ///< of the backward under way
};

}  // namespace levin
