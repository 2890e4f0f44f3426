#pragma once

#include <levin/core/base/state.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace levin {

class Collective;

/// Which entries of a module's parameters are pruned: a mask for each of these parameters, beside the module. An entry
/// that is pruned stays so.
class PruningMasks {
 public:
  struct Parameter {
    std::string name = {};
    at::Tensor value = {};  ///< the module's
    at::Tensor kept = {};  ///< of the same shape and type, 0 where it is pruned and else 1; undefined until anything is
  };

  /// Forgets masks and parameters.
  void reset();
  /// Binds to parameters, by name, and takes over what was loaded. Throws levin::Error when that is of other ones.
  void bind(std::vector<std::pair<std::string, at::Tensor>> parameters);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Whether nothing was pruned yet.
  bool empty() const { return parameters_.empty() || !parameters_.front().kept.defined(); }

  /// How entries are pruned.
  struct Rule {
    bool random = false;   ///< entries or slices are drawn, rather than those of the smallest norm
    bool slices = false;   ///< whole slices along `dim`, rather than single entries
    bool global = false;   ///< all parameters compete with each other, rather than each within itself
    int64_t dim = 0;       ///< of slices; negative: counted from the last one
    double norm = 2;       ///< by which slices are compared
    bool of_rest = false;  ///< `amount` is a share of what is not pruned yet; else the share that is pruned afterwards
    double amount = 0;
    uint64_t seed = 0;  ///< of what is drawn
  };
  /// Prunes further entries; the values of parameters stay until `apply`. What is chosen is the same as with PyTorch's
  /// torch.nn.utils.prune. Waits for the device.
  void prune(const Rule& rule);
  /// Gives every rank rank 0's masks. A collective.
  void share(Collective& collective);

  /// Sets pruned entries of the parameters to zero, in place and in one fused call.
  void apply();
  /// Likewise those of their gradients; not of sparse ones.
  void apply_to_gradients();
  /// Returns a copy of a tensor of that parameter's shape whose pruned entries are zero.
  static at::Tensor masked(const Parameter& parameter, const at::Tensor& tensor);

  /// Pruned entries of each parameter. Waits for the device.
  std::vector<int64_t> count() const;

  /// The masks by name; `load` keeps what this gave until `bind`.
  State state_dict() const;
  void load(const State& state);

 private:
  void prune_together(const Rule& rule, size_t first, size_t count);

  std::vector<Parameter> parameters_;
  State loaded_;
};

}  // namespace levin
