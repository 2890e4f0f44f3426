#pragma once

#include <levin/core/base/state.h>
#include <levin/core/interchange/weight_rules.h>
#include <levin/core/interchange/weights.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// What became of the tensors of a file and of a module.
struct WeightReport {
  struct OtherShape {
    std::string name = {};
    std::vector<int64_t> got = {};     ///< in the file, after the rules
    std::vector<int64_t> wanted = {};  ///< in the module
  };
  std::vector<std::string> loaded = {};     ///< the module's names, as those of `missing` and `other_shape`
  std::vector<std::string> missing = {};    ///< not in the file; they keep their values
  std::vector<std::string> left_over = {};  ///< in the file alone, after the rules
  std::vector<OtherShape> other_shape = {};
  std::vector<std::string> dropped = {};  ///< by a rule
  /// Further names of the module's tied tensors, under which the file has other values or shapes.
  std::vector<std::string> untied = {};

  /// Whether every tensor of either side has its counterpart.
  bool fits() const { return missing.empty() && left_over.empty() && other_shape.empty() && untied.empty(); }
  /// Says all of it in a few lines, with the nearest names of what found none.
  std::string text() const;
};

/// Tensors under the names and in the shapes that rules give them.
struct MappedWeights {
  SavedTensors tensors = {};
  std::vector<std::string> dropped = {};
};

/// Gives tensors other names and shapes; none is read. Throws levin::Error for a rule that meets nothing although it
/// must, a name that two rules meet, a name given twice, and parts that are missing or do not go together.
MappedWeights map_weights(const SavedTensors& tensors, const LoadWeightsOptions& options);

/// A module's tensors by name.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Which tensor of a file each of a module's gets.
struct WeightPlan {
  State tensors = State::map();  ///< as DividedModel::load_module_state takes them
  WeightReport report = {};
};

/// Opens `options.path` and finds a tensor for each of the module's. `aliases`: further names of the module's tensors,
/// such as those of tied weights; what a file holds under them is passed over. Changes nothing; throws levin::Error
/// where something does not fit and `options.strict` is set, or where nothing fits at all.
WeightPlan plan_weights(const NamedTensors& module, const std::map<std::string, std::string>& aliases,
                        const LoadWeightsOptions& options);

/// Copies a saved tensor into one of the same shape, converting its elements where the types differ. Reads straight
/// into it where it can, and otherwise needs a buffer of 16 MiB.
void read_into(const SavedTensor& saved, at::Tensor target);
/// Likewise as many elements as `target` has, which is contiguous, from `offset` on in row-major order.
void read_part_into(const SavedTensor& saved, int64_t offset, at::Tensor target);

}  // namespace levin
