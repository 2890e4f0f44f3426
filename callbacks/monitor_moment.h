#pragma once

#include <cstdint>
#include <optional>

namespace levin {

class Trainer;
struct TrainerOptions;

/// When in an epoch a callback looks at metrics: at the end of the training epoch or after validation, never at both.
///
/// Unless the user says which, it is the end of the training epoch where validation runs once in every epoch: by then
/// the epoch's training metrics are there as well. Otherwise it is after each validation, and the end of the training
/// epoch only where the validation that was due did not take place because there is none.
class MonitorMoment {
 public:
  /// `at_train_epoch_end`: the user's choice; nothing for the default.
  explicit MonitorMoment(std::optional<bool> at_train_epoch_end) : choice_(at_train_epoch_end) {}

  /// A validation within fit ended (the sanity check is none).
  void count_validation() { validated_ = true; }
  bool validated() const { return validated_; }
  void set_validated(bool validated) { validated_ = validated; }

  bool is_validation_end(const TrainerOptions& options) const;
  /// `epoch`: the 0-based epoch that ends.
  bool is_train_epoch_end(const TrainerOptions& options, int64_t epoch) const;
  /// Whether, after so many whole training epochs, validation has had its turn as well: a metric that is still missing
  /// is a mistake.
  bool all_metrics_due(const TrainerOptions& options, int64_t completed_epochs) const;

  /// Batches done of the epoch under way: tells an epoch that was cut short.
  void count_batches(int64_t done) { batches_ = done; }
  /// At the end of an epoch: how many are whole by now.
  int64_t completed_epochs(const Trainer& trainer) const;

  /// Forgets what it saw: a fit starts.
  void reset() { validated_ = false; }

 private:
  const std::optional<bool> choice_;
  bool validated_ = false;
  int64_t batches_ = 0;
};

}  // namespace levin
