#pragma once

#include <levin/core/comm/collective.h>
#include <levin/strategies/sharded/shard_layout.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

struct ShardingOptions {
  bool keeps_parameters = false;            ///< whole parameters stay between steps: stages 1 and 2
  bool keeps_gradients = false;             ///< whole gradients stay between micro-batches: stage 1
  at::ScalarType type = at::kFloat;         ///< type of the full parameters and gradients: what the model computes with
  at::ScalarType reduce_type = at::kFloat;  ///< type in which gradients are averaged
  bool offload = false;  ///< this rank's part, and with it the optimizer's state and step, are in the host's memory
};

/// Some parameters of a module as one flat tensor, of which each rank keeps a shard: the parameters' values, in the
/// type of the optimizer, and their gradients, averaged over the ranks (Rajbhandari et al., "ZeRO", 2020,
/// arXiv:1910.02054). Whole parameters and gradients are there only as long as they are needed, where the stage does
/// not keep them.
///
/// The module's tensors keep their identity: they are views of the full flat tensor while it is there; while it is
/// not, touching one throws levin::Error naming it.
///
/// Methods marked "collective" are called by all ranks in the same order, for all objects alike.
class FlatParameterGroup {
 public:
  using NamedParameter = std::pair<std::string, at::Tensor>;

  /// Takes the values of the parameters, the same on every rank, and frees what is not this rank's; zero for those that
  /// are not there (is_released). All of one device and of the optimizer's type. `replicas`: the ranks that hold the
  /// same shard (hybrid sharding), or nullptr.
  FlatParameterGroup(std::string name, std::vector<NamedParameter> parameters, std::shared_ptr<Collective> group,
                     std::shared_ptr<Collective> replicas, const ShardingOptions& options);
  ~FlatParameterGroup();
  FlatParameterGroup(const FlatParameterGroup&) = delete;
  FlatParameterGroup& operator=(const FlatParameterGroup&) = delete;

  const std::string& name() const { return name_; }
  /// Renames the group and each parameter: names are known only when the module is complete.
  void rename(std::string name, const std::function<std::string(const at::Tensor&)>& name_of);
  const ShardLayout& layout() const { return layout_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  /// Divides the parameters anew: each belongs whole to the rank that is its owner. Values stay; local shards,
  /// `storage()` and gradients do not. Collective, while no parameters are needed.
  void divide_by_tensor(const std::vector<int64_t>& owners);
  /// This rank's part of each parameter as the optimizer steps it: flat, or of the parameter's shape where parameters
  /// belong whole to ranks; without elements where it holds none.
  const std::vector<at::Tensor>& local_shards() const { return local_shards_; }
  ShardLayout::LocalShard local_shard(size_t parameter) const { return layout_.local_shard(parameter, group_->rank()); }

  // ---- Whole parameters

  /// Starts to gather the parameters; collective. Does nothing where they are there or on their way.
  void start_unshard();
  /// Waits for them.
  void finish_unshard();
  /// Whether they are there or on their way.
  bool is_unsharded() const { return unsharded_; }
  /// Whether they are there.
  bool is_ready() const { return unsharded_ && gathering_ == nullptr; }
  /// Of the full parameters, freed or not: what aliases them has it.
  const c10::StorageImpl* storage() const { return whole_.storage().unsafeGetStorageImpl(); }
  /// Frees them, unless the stage keeps them.
  void reshard();
  /// Takes what the program has written to the full parameters into the local shards, where these are memory of their
  /// own. Elements that it left alone keep the digits that the shards have.
  void take_changes();
  /// Notes that the optimizer has changed the local shards: the full parameters follow with the next unshard.
  void local_shards_changed() { unsharded_ = false; }

  /// Makes the module's tensors ordinary ones again, of the optimizer's type; a collective, and the last one.
  void gather_full_parameters();

  // ---- Gradients

  /// Takes the gradient that backward has just given to a parameter. True: it was the last one that was missing.
  bool take_gradient(size_t parameter);
  /// Whether no gradient of the window is there yet.
  bool begins_window() const;
  /// Starts to average the gradients; collective. Those that are missing count as zero.
  void start_reduce();
  /// Waits for them. The local shards have gradients then, the sum of the window so far, in the type that they were
  /// computed in.
  void finish_reduce();
  /// Copies between the shards on the host and the device are done, so that the host may read and write those.
  void wait_for_device() const;
  /// Keeps what was taken, and reduces nothing: the micro-batch was not the last of its window.
  void keep_gradients();
  /// Whether there are such.
  bool has_kept_gradients() const { return std::find(is_kept_.begin(), is_kept_.end(), true) != is_kept_.end(); }
  /// Drops one of them: its window was left without a step.
  void drop_kept_gradient(size_t parameter) { is_kept_[parameter] = false; }
  /// Drops the gradient of a local shard: no rank's loss depends on the parameter.
  void drop_gradient(size_t parameter) { local_shards_[parameter].mutable_grad().reset(); }
  /// Converts the local shards' gradients to the optimizer's type, for a step.
  void widen_gradients();
  /// Takes that back after the step, so that gradients take no more memory than before it.
  void narrow_gradients();
  /// Forgets gradients and what is on its way, without waiting for it, after a failure. Nothing else may follow.
  void abandon() noexcept;

 private:
  /// Makes the flat tensors, of `like` in all but their type, and the views of them from the parameters' values; one
  /// that is undefined counts as zero.
  void lay_out(const at::TensorOptions& like, const std::vector<at::Tensor>& values);
  at::Tensor shard_of(const at::Tensor& flat, int64_t rank) const;
  at::Tensor own_part(const at::Tensor& flat) const { return shard_of(flat, group_->rank()); }
  int64_t shard_size() const { return layout_.shard_size(group_->rank()); }
  /// A parameter's part of a tensor that is laid out as the shard, in the shape in which the optimizer steps it.
  at::Tensor in_shard(const at::Tensor& shard, size_t parameter) const;
  /// Starts to gather shards into a flat tensor, which holds this rank's; collective.
  std::unique_ptr<Work> start_gather(const at::Tensor& flat);
  /// All parameters in the optimizer's type, flat; collective. Frees whole ones that are not kept.
  at::Tensor gathered_shards();
  /// The module's tensors become views of the full flat tensor, or tensors that say that they are not there.
  void show(bool whole);
  at::Tensor gradient_view(size_t parameter) const;
  bool has_local_gradients() const;
  at::Tensor own_gradients() const;
  void keep_reduced_apart();
  void convert_gradients(const at::Tensor& converted);
  void set_local_gradients();
  at::TensorOptions shard_options(at::ScalarType type) const;

  std::string name_;
  std::vector<NamedParameter> parameters_;
  std::shared_ptr<Collective> group_;
  std::shared_ptr<Collective> replicas_;
  const ShardingOptions options_;
  ShardLayout layout_;
  at::Tensor whole_;                ///< flat, of `type`; its storage may be freed
  std::vector<at::Tensor> views_;   ///< of it, one for each parameter
  std::vector<at::Tensor> absent_;  ///< what the module's tensors are meanwhile; none where they are kept
  std::vector<uint32_t> versions_;  ///< of the module's tensors, up to which changes are in the local shards
  at::Tensor shard_;                ///< of the optimizer's type; a part of `whole_` where that is kept and of this type
  std::vector<at::Tensor> local_shards_;  ///< of it
  bool unsharded_ = true;                 ///< `whole_` has the values of all ranks, or they are on their way
  std::unique_ptr<Work> gathering_;
  at::Tensor whole_gradient_;     ///< flat, of `type`; undefined while it is not needed
  std::vector<bool> is_taken_;    ///< in this micro-batch, by parameter
  std::vector<bool> is_reduced_;  ///< the newest reduction has a gradient of this rank, by parameter
  std::vector<bool> is_kept_;     ///< `whole_gradient_` holds earlier micro-batches' of the window, by parameter
  int64_t taken_ = 0;
  at::Tensor reduced_;  ///< this rank's part, while it is on its way
  std::unique_ptr<Work> reducing_;
  std::unique_ptr<Work> reducing_over_replicas_;
  at::Tensor shard_gradient_;  ///< of the local shards' gradients
  /// Of copies to and from the host, with the communication that waits for them or that they wait for, where the shards
  /// are offloaded from a device: beside the computation.
  std::optional<c10::Stream> copies_;
  bool is_widened_ = false;  ///< `shard_gradient_` has values of `type` in the optimizer's type
};

}  // namespace levin
