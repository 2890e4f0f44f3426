#pragma once

#include <cstdint>
#include <optional>

namespace levin {

/// Reduction of logged values of one name over batches and ranks.
enum class LogReduce { kMean, kSum, kMin, kMax };

/// Options of a logged value. In a training step the default is the step, everywhere else the epoch. A metric object's
/// value of the step covers its updates since it was last logged: the batch.
struct LogOptions {
  std::optional<bool> on_step = {};        ///< log the step's value at every logging boundary
  std::optional<bool> on_epoch = {};       ///< log the epoch's value; with both, names get "_step" and "_epoch"
  bool prog_bar = false;                   ///< show it in the progress bar
  bool logger = true;                      ///< hand it to the loggers
  std::optional<int64_t> batch_size = {};  ///< weight in the epoch's mean; default: the step's
                                           ///< (StepOutput), else the batch's size
  LogReduce reduce = LogReduce::kMean;
  /// Combine over ranks as well. Default: not in a training step, everywhere else yes, since evaluations' results are
  /// acted on and all values of an epoch travel together anyway. A metric object's value of the epoch is always
  /// combined.
  std::optional<bool> sync_dist = {};
  bool rank_zero_only = false;     ///< logged by rank 0 alone; never combined over ranks
  bool add_dataloader_idx = true;  ///< with several loaders, append "/dataloader_idx_N" to the name
};

}  // namespace levin
