#pragma once

#include <cstdint>
#include <optional>

namespace levin {

/// How logged values of one name are combined over batches and ranks.
enum class LogReduce { kMean, kSum, kMin, kMax };

/// How a value is logged. In a training step the default is the step, everywhere else the epoch. The step's value of a
/// metric object is that of what it was updated with since it was last logged: of the batch.
struct LogOptions {
  std::optional<bool> on_step = {};        ///< the value of the step at every logging boundary
  std::optional<bool> on_epoch = {};       ///< combined over the epoch; with both, names get "_step" and "_epoch"
  bool prog_bar = false;                   ///< show it in the progress bar
  bool logger = true;                      ///< hand it to the loggers
  std::optional<int64_t> batch_size = {};  ///< weight in the epoch's mean; default: the batch's size
  LogReduce reduce = LogReduce::kMean;
  /// Combine over ranks as well. Default: in a training step no, everywhere else yes, since what an evaluation gives is
  /// acted on, and all values of an epoch travel together anyway. An epoch's value of a metric object is always
  /// combined.
  std::optional<bool> sync_dist = {};
  bool rank_zero_only = false;     ///< only rank 0 has it; never combined over ranks
  bool add_dataloader_idx = true;  ///< with several loaders, append "/dataloader_idx_N" to the name
};

}  // namespace levin
