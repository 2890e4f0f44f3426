#pragma once

#include <levin/core/data/batch.h>
#include <levin/core/interfaces/strategy.h>

namespace levin {

/// Interface of strategies that divide each example over ranks: such ranks get the same batches, and each has the loss,
/// gradients and logged values of its part.
class DividedExamples {
 public:
  virtual ~DividedExamples() = default;
  /// Returns this rank's part of a batch, for a prediction; the whole batch where it cannot be divided, of which each
  /// rank then predicts all.
  virtual Batch part_of(const Batch& batch) = 0;
  /// Returns what the ranks have of a prediction together. Collective of the ranks that divide the batch.
  virtual Batch whole_of(const Batch& prediction) = 0;
  /// Whether this rank is the first of those that divide a batch, which keeps whole predictions.
  virtual bool is_first() = 0;
  /// Index of this rank's loss among the losses of a step, and their number.
  virtual Strategy::DataParallelRank loss_rank() = 0;
};

/// The strategy's divided examples where it has them, else nullptr.
inline DividedExamples* find_divided_examples(Strategy& strategy) { return dynamic_cast<DividedExamples*>(&strategy); }

/// Whether this rank counts what is of whole examples: the first of those that divide a batch.
inline bool counts_examples(Strategy& strategy) {
  DividedExamples* const divided = find_divided_examples(strategy);
  return divided == nullptr || divided->is_first();
}

/// Index of this rank's loss among the losses of a step, and their number: those of the data where ranks do not divide
/// examples.
inline Strategy::DataParallelRank loss_rank(Strategy& strategy) {
  DividedExamples* const divided = find_divided_examples(strategy);
  return divided == nullptr ? strategy.data_parallel_rank() : divided->loss_rank();
}

}  // namespace levin
