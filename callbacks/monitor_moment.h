#pragma once

#include <cstdint>
#include <optional>

namespace levin {

class Trainer;
struct TrainerOptions;

/// Moment of an epoch at which a callback looks at metrics: the end of the training epoch or after validation, never
/// both.
///
/// Unless the user says which, it is after each validation where validation runs at other times than the end of every
/// epoch. Otherwise, and where there are no validation data, it is the end of the training epoch: by then its training
/// metrics are there as well.
class MonitorMoment {
 public:
  /// `at_train_epoch_end`: the user's choice; nothing for the default.
  explicit MonitorMoment(std::optional<bool> at_train_epoch_end) : choice_(at_train_epoch_end) {}

  /// `validates`: there are validation data.
  bool is_train_epoch_end(const TrainerOptions& options, bool validates) const;
  bool is_train_epoch_end(const Trainer& trainer) const;
  bool is_validation_end(const Trainer& trainer) const { return !is_train_epoch_end(trainer); }

  /// Notes the batches done of the epoch under way, to tell an epoch that was cut short.
  void count_batches(int64_t done) { batches_ = done; }
  /// Whether, at the end of an epoch, all that is logged has had its turn: a metric that is still missing is a mistake.
  bool all_metrics_due(const Trainer& trainer) const;

 private:
  /// Whether the epoch that ends is a whole one, which leaves no metric out.
  bool is_whole(const Trainer& trainer) const;

  const std::optional<bool> choice_;
  int64_t batches_ = 0;
};

}  // namespace levin
