#pragma once

#include <levin/core/data/batch.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/core/nn/cut_context.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

class Collective;
class ContextUnits;

/// What a strategy says of how sequences are divided.
struct ContextCutOptions {
  int64_t dimension = 1;                  ///< of a batch's tensors, which has the positions
  std::vector<std::string> tensors = {};  ///< none: all with as many positions as the first
  std::string method = "all_to_all";
};

/// Divides the sequences of a batch over ranks that see the same examples (see cut_context). A strategy that has it
/// runs forwards on the parts, and averages gradients over these ranks too.
class ContextCut {
 public:
  /// The module outlives it. `group`: the ranks that divide a batch, several.
  ContextCut(ContextCutOptions options, std::shared_ptr<Collective> group, torch::nn::Module& module);
  ~ContextCut();
  ContextCut(const ContextCut&) = delete;
  ContextCut& operator=(const ContextCut&) = delete;

  /// This rank's part. Throws levin::Error for sequences that cannot be divided.
  Batch cut(const Batch& batch) const;
  /// The same; the whole batch where it cannot be divided, or has no positions.
  Batch part_of(const Batch& batch) const;
  /// What the ranks have of a prediction together. Collective.
  Batch whole_of(const Batch& prediction) const;
  /// Whether this rank is the first of those that divide a batch.
  bool is_first() const;
  /// How much of a batch's examples a part counts for.
  double share() const;
  /// Runs training_step on this rank's part. Throws levin::Error for a loss that cannot be combined with those of the
  /// other ranks, and where nothing has attended to all positions.
  StepOutput training_forward(const Batch& batch, const std::function<StepOutput(const Batch&)>& forward);

 private:
  int64_t length_of(const Batch& batch) const;
  bool is_cut(const std::string& name, const at::Tensor& tensor, int64_t length) const;
  /// What lengths are multiples of.
  int64_t multiple() const;
  bool can_divide(int64_t length) const;

  const ContextCutOptions options_;
  const std::shared_ptr<Collective> group_;
  const std::unique_ptr<ContextUnits> units_;
  bool has_attended_ = false;
};

}  // namespace levin
