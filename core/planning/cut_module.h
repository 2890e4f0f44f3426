#pragma once

#include <levin/core/nn/tensor_plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin {

/// What the ranks of a tensor group add up.
struct SummedBytes {
  int64_t forward = 0;
  int64_t backward = 0;
  int64_t times = 0;  ///< sums in both
};

/// While it lives, a module on one device holds and computes what the first of so many ranks of a tensor group would.
/// The others are not there: what they would add is missing from results, whose sizes are right. For measurements of
/// memory, operations and what is sent.
class CutModule {
 public:
  /// `weights`: of the module, of which each size divides; see weights_to_cut.
  CutModule(const std::vector<CutWeight>& weights, int64_t ranks);
  /// Gives the weights all their values again.
  ~CutModule();
  CutModule(const CutModule&) = delete;
  CutModule& operator=(const CutModule&) = delete;

  /// Since it was made.
  const SummedBytes& summed() const;

 private:
  class AbsentRanks;
  struct Cut {
    at::Tensor tensor;  ///< of the module
    at::Tensor whole;
  };
  void take_share(const at::Tensor& tensor, int64_t dim, int64_t parts);

  std::shared_ptr<AbsentRanks> group_;
  std::vector<Cut> cuts_;
};

/// Returns the numbers of ranks, of at least 2 and at most `most`, that all of these weights can be cut over.
std::vector<int64_t> ranks_to_cut_over(const std::vector<CutWeight>& weights, int64_t most);

}  // namespace levin
