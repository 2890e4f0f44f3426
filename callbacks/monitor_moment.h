#pragma once

#include <cstdint>
#include <optional>

namespace levin {

class Trainer;
struct TrainerOptions;

/// Moment of an epoch at which a callback looks at metrics: the end of the training epoch or after validation, never
/// both.
///
/// Unless the user says which, it is the end of the training epoch where validation runs once in every epoch: by then
/// the epoch's training metrics are there as well. Otherwise it is after each validation, and the end of the training
/// epoch only where the validation that was due did not take place because there is none.
class MonitorMoment {
 public:
  /// `at_train_epoch_end`: the user's choice; nothing for the default.
  explicit MonitorMoment(std::optional<bool> at_train_epoch_end) : choice_(at_train_epoch_end) {}

  bool is_validation_end(const TrainerOptions& options) const;
  /// Whether to look at the end of the training epoch of this 0-based number. `validated`: a validation is over.
  bool is_train_epoch_end(const TrainerOptions& options, bool validated, int64_t epoch) const;

  /// Notes the batches done of the epoch under way, to tell an epoch that was cut short.
  void count_batches(int64_t done) { batches_ = done; }
  /// Number of epochs at the end of a whole one that validates, which leaves no metric out; 0 at that of another one.
  /// Those before may have been cut short.
  int64_t completed_epochs(const Trainer& trainer) const;

 private:
  const std::optional<bool> choice_;
  int64_t batches_ = 0;
};

}  // namespace levin
