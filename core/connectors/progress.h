#pragma once

#include <levin/core/base/loss_weight.h>
#include <levin/core/base/state.h>

#include <cstdint>
#include <string>

namespace levin {

/// Position of an evaluation.
struct EvaluationProgress {
  bool started = false;
  int64_t loader = 0;  ///< the loader under way
  int64_t batch = 0;   ///< batches of it that are done
};

/// Next action of a resumed run.
enum class FitPhase : int64_t {
  kBatches = 0,          ///< the next batch, after validation if it is due for the one just done
  kValidation = 1,       ///< the rest of a validation
  kAfterValidation = 2,  ///< the next batch, or the end of the epoch
  kEpochDone = 3,        ///< the next epoch
};

/// Position of training, exactly, as plain counters. Saved in every checkpoint.
struct FitProgress {
  int64_t epoch = 0;                ///< 0-based
  int64_t global_step = 0;          ///< optimizer steps taken
  int64_t batch = 0;                ///< batches done in this epoch
  int64_t total_batches = 0;        ///< batches done in all epochs
  int64_t empty_epochs = 0;         ///< epochs that ended before their first batch
  int64_t moment_before_epoch = 0;  ///< moment() where this epoch began
  int64_t samples = 0;              ///< examples seen by all ranks in all epochs
  int64_t epoch_samples = 0;        ///< examples seen by all ranks in this epoch
  int64_t first_example =
      0;  ///< where batch 0 of this epoch starts in the order of examples; see resume_with_batches_of
  int64_t global_batch_size = 0;  ///< examples in a batch of all ranks together; 0 before the first fit, and where
                                  ///< batches differ in size
  std::string order;  ///< what the order of an epoch follows from beside seed and epoch, for people; empty: nothing
  int64_t step_offset = 0;         ///< steps taken so far, less those that batches of the present size would have taken
  bool has_other_batches = false;  ///< they have another size since it was saved; not saved
  bool epoch_started = false;
  bool last_batch_done = false;           ///< no batch is left in this epoch
  bool cut_short = false;                 ///< on_train_batch_start ended this epoch
  bool ended_inside = false;              ///< training ended inside of this epoch after the batch done last
  int64_t window_index = 0;               ///< batches done in the accumulation window under way
  int64_t window_size = 1;                ///< batches in the window under way
  int64_t window_examples = 0;            ///< in these, of all ranks; 0: not known
  int64_t window_usual_examples = 1;      ///< in a batch of full size of one rank, where the above is not known
  bool window_has_gradients = false;      ///< a batch of the window under way was not skipped
  LossWeight window_weight = 0;           ///< of this rank's losses in it; kept beside its gradients
  int64_t scheduler_steps_held_back = 0;  ///< optimizer steps were skipped; the schedulers are still to follow suit
  FitPhase phase = FitPhase::kBatches;
  EvaluationProgress validation;
  bool validated = false;                ///< a validation is over
  double elapsed = 0;                    ///< seconds of training, those of earlier runs included
  double seconds_since_validation = 0;   ///< for a val_check_interval that is a time
  int64_t batches_since_validation = 0;  ///< for a val_check_interval that counts across epochs

  /// Number that the ages of metrics are told by: batches done in all epochs, an epoch without any counted as one, so
  /// that what its end gives is newer than what was there before.
  int64_t moment() const { return total_batches + empty_epochs; }
  /// Notes that this epoch has ended, before anything is logged for it.
  void note_epoch_end() { empty_epochs += moment() == moment_before_epoch ? 1 : 0; }
  /// Leaves the accumulation window under way without a step.
  void abandon_window();
  /// Moves to the beginning of the next epoch. Returns whether the one that ends began elsewhere than at the first
  /// example, so that this one has another number of batches.
  bool start_next_epoch();

  /// Goes on at the same example with batches of another size than in the run that saved this. `examples`: in a batch
  /// of all ranks together.
  void resume_with_batches_of(int64_t examples);

  State state_dict() const;
  void load_state_dict(const State& state);
};

}  // namespace levin
