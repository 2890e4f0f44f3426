#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

/// How the ranks of tensor parallelism divide a weight.
enum class TensorCut {
  kColumn,      ///< each has some outputs (rows of the weight [out, in], and elements of the bias)
  kRow,         ///< each has some inputs, and the outputs are added up
  kVocabulary,  ///< each has some rows of an embedding, and of a head that gives logits
  kWhole,       ///< not at all
};

/// Says of the weights that match how they are cut.
struct TensorRule {
  std::string pattern = {};  ///< path of a layer or of a weight; `*` stands for any characters
  TensorCut cut = TensorCut::kColumn;
  int64_t parts = 1;  ///< kColumn: projections that the weight fuses, one after the other
  int64_t heads = 0;  ///< that the cut dimension (each of its parts) consists of, which stay whole; 0: none
};

/// Layers that are cut together: what a column layer gives, cut, goes through operators that see each feature or head
/// by itself, to a row layer. Paths begin at the module that has the plan.
using TensorPlan = std::vector<TensorRule>;

/// A module that says how it is cut, beside what it is. Its forward must follow the sizes of what its layers give:
/// heads by `unflatten(-1, {-1, head_dim})`, not by a number that is written out.
class HasTensorPlan {
 public:
  virtual ~HasTensorPlan() = default;
  virtual TensorPlan tensor_plan() const = 0;
};

/// A weight that is to be cut.
struct CutWeight {
  std::string name = {};
  at::Tensor weight = {};
  std::string bias_name = {};
  at::Tensor bias = {};  ///< undefined: none
  TensorRule rule = {};
};

/// Returns the weights that the plans of a module and of what it consists of cut, in the module's order. `further`:
/// rules with paths from the module on, which take the place of others of the same weights. Throws ConfigError, led by
/// `option` for these, where a pattern matches nothing, a weight matches twice, a size is no multiple of `ranks`, there
/// is a row layer without a column layer or the other way round, or nothing is to be cut.
std::vector<CutWeight> weights_to_cut(torch::nn::Module& module, int64_t ranks, const TensorPlan& further,
                                      const std::string& option);

}  // namespace levin
