#pragma once

#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/dimension_cut.h>
#include <levin/core/interfaces/parallel_model.h>
#include <levin/core/nn/tensor_plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace levin {

class Module;
class SequenceUnits;

namespace detail {
class AdapterLayer;
}

/// A module of whose layers each rank of a group holds a share: weights are cut where they are, and get the behaviours
/// that make its forward that of the whole module.
class TensorModel {
 public:
  /// Every rank has the same values, on its device. The module outlives it.
  TensorModel(Module& module, const std::vector<CutWeight>& weights, std::shared_ptr<Collective> group,
              bool sequence_parallel);
  /// Leaves what is not gathered without values: a share would be taken for a whole weight.
  ~TensorModel();
  TensorModel(const TensorModel&) = delete;
  TensorModel& operator=(const TensorModel&) = delete;

  const std::shared_ptr<Collective>& group() const { return group_; }
  /// What this rank holds of each parameter.
  std::vector<ParallelModel::Entry> entries() const;
  /// The same where the ranks of another group divide what this one would hold. `of_shares`: which part it has of each
  /// parameter as the module has it.
  std::vector<ParallelModel::Entry> entries(std::vector<ParallelModel::Entry> of_shares) const;
  /// Leaves out, from here on, the shares of parameters that another pipeline stage steps and saves.
  void save_only(const std::function<bool(const at::Tensor& parameter)>& is_saved);
  /// Gives parts that a ParallelModel of such entries has placed, of the module or of an optimizer, their places in the
  /// whole tensors. `share_group`: the ranks that divide a share, of which each may lack what it holds no elements of.
  /// Collective of both groups.
  State place_shares(const State& placed, Collective& share_group) const;
  /// Turns a saved module_state, or the state of an optimizer, into one from which such a ParallelModel takes its
  /// parts. Collective of both groups where place_shares has made it. Throws levin::Error for another shape of a
  /// parameter.
  State own_shares(const State& saved, Collective& share_group) const;
  State own_optimizer_shares(const State& saved, Collective& share_group) const;
  /// Throws levin::Error where something has given a weight other memory since (Module::to), as it would be taken for a
  /// whole one.
  void require_behaviours() const;
  /// Throws levin::Error naming a parameter that is whole on every rank, but has another gradient on each: one that is
  /// used between a column layer and a row layer. Collective.
  void require_equal_gradients(const ParallelModel& parts) const;
  /// Gives the parameters of a module of the trained one all values, until what is returned goes; collective. Each
  /// rank keeps its part of what was written to them.
  std::shared_ptr<void> full_parameters(const torch::nn::Module& module);
  /// Gives the module all values again; collective.
  void gather_full_parameters();
  /// Returns what the ranks have of a parameter together, of which this one has `values`; these where it is not cut.
  /// Collective.
  at::Tensor whole_of(const at::Tensor& parameter, const at::Tensor& values) const;
  /// Ends it where the module has all values again.
  void forget_shares() { shares_.clear(); }

 private:
  struct Share {
    std::string name;
    at::Tensor tensor;  ///< of the module
    DimensionCut cut;
    bool is_weight;        ///< has a behaviour
    bool is_block;         ///< one after the other in the flat order of elements
    bool is_saved = true;  ///< by this rank's pipeline stage
  };
  void cut(const CutWeight& weight);
  /// Has the adapters of layers that are cut no more know it.
  void join_adapters();
  const Share* find(const at::Tensor& parameter) const;
  const Share* find(const std::string& name) const;
  /// This rank's share, of which `elements` are those from `offset` on.
  static at::Tensor whole_share(const Share& share, const at::Tensor& elements, int64_t offset,
                                Collective& share_group);
  int64_t begin_of(const Share& share) const { return group_->rank() * share.tensor.numel(); }
  static bool is_whole(const Share& share, const TensorLeaf& leaf);
  State place_share(const Share& share, const TensorLeaf& placed, Collective& share_group) const;
  State own_share(const Share& share, const TensorLeaf& saved, Collective& share_group) const;

  Module& module_;
  std::shared_ptr<Collective> group_;
  std::vector<Share> shares_;
  std::unique_ptr<SequenceUnits> sequences_;                    ///< nullptr: every rank has whole ones
  std::vector<std::shared_ptr<detail::AdapterLayer>> adapted_;  ///< whose weights are cut
};

/// Cuts a module over the ranks of a group as its plans say, and gives them the random numbers of the first of them.
/// `plan`: column, row, vocabulary or whole by pattern, in addition. `sequence_parallel`: what units pass on is cut too
/// (see SequenceUnits). Collective. Throws ConfigError, led by
/// `strategy.tensor.plan` for these.
std::unique_ptr<TensorModel> cut_layers(Module& module, const std::map<std::string, std::string>& plan,
                                        std::shared_ptr<Collective> group, const at::Device& device,
                                        bool sequence_parallel);
/// Throws ConfigError naming the strategy for an optimizer that does not step each element by itself.
void require_element_wise(const torch::optim::Optimizer& optimizer, const std::string& strategy);

}  // namespace levin
