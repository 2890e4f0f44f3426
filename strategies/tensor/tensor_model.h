#pragma once

#include <levin/core/comm/collective.h>
#include <levin/core/comm/dimension_cut.h>
#include <levin/core/interfaces/parallel_model.h>
#include <levin/core/nn/tensor_plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin {

class Module;

/// A module of whose layers each rank of a group holds a share: weights are cut where they are, and get the behaviours
/// that make its forward that of the whole module.
class TensorModel {
 public:
  /// Every rank has the same values, on its device. The module outlives it.
  TensorModel(Module& module, const std::vector<CutWeight>& weights, std::shared_ptr<Collective> group);
  /// Leaves what is not gathered without values: a share would be taken for a whole weight.
  ~TensorModel();
  TensorModel(const TensorModel&) = delete;
  TensorModel& operator=(const TensorModel&) = delete;

  /// What this rank holds of each parameter.
  std::vector<ParallelModel::Entry> entries() const;
  /// Throws levin::Error where something has given a weight other memory since (Module::to), as it would be taken for a
  /// whole one.
  void require_behaviours() const;
  /// Throws levin::Error naming a parameter that is whole on every rank, but has another gradient on each: one that is
  /// used between a column layer and a row layer. Collective.
  void require_equal_gradients() const;
  /// Gives the parameters of a module of the trained one all values, until what is returned goes; collective. Each
  /// rank keeps its part of what was written to them.
  std::shared_ptr<void> full_parameters(const torch::nn::Module& module);
  /// Gives the module all values again; collective.
  void gather_full_parameters();

 private:
  struct Share {
    std::string name;
    at::Tensor tensor;  ///< of the module
    DimensionCut cut;
    bool is_weight;  ///< has a behaviour
  };
  void cut(const CutWeight& weight);

  Module& module_;
  std::shared_ptr<Collective> group_;
  std::vector<Share> shares_;
};

}  // namespace levin
