#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace levin {

class Trainer;

struct DryRunOptions {
  /// Examples in a batch of one rank; only full batches are used then. Unset: the batches of the fit.
  std::optional<int64_t> batch_size = {};
  /// Whether one rank may run out of memory, and all step back together. The ranks then do not communicate inside a
  /// step: gradients, buffers and BatchNorm's statistics stay each rank's own. They agree after every forward and
  /// backward, before anything that might communicate again, and after every optimizer step.
  bool may_run_out_of_memory = false;
  /// With `may_run_out_of_memory`: runs the first forward and backward of a step, which it is given; to measure them.
  std::function<void(const std::function<void()>& forward_backward)> around = {};
};

/// Takes some training steps before a fit, to find something out, and takes all of it back: afterwards weights,
/// buffers, gradients, optimizers, schedulers, precision, the state that module and data module save, random
/// generators, logged metrics, loaders and counters are to the bit what they were. Tensors keep their identity.
///
/// Callbacks and loggers see nothing of it. The module's hooks are called, from on_train_start on, except for those at
/// the end of an epoch and of training; schedulers do not step. What a module keeps in plain members is its own affair:
/// on_save_checkpoint and on_load_checkpoint are called around a dry run. Made in on_fit_start, on all ranks alike.
class DryRun {
 public:
  explicit DryRun(Trainer& trainer, const DryRunOptions& options = {});
  /// Takes everything back.
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  /// Outcome of a step, the same on all ranks: the worst of theirs, which is the greatest value.
  enum class Result { kDone = 0, kNoData, kOutOfMemory, kInterrupted };
  /// Takes one optimizer step: a whole accumulation window, or its first two batches where memory is what matters.
  /// Where the data of an epoch end, the next one follows. After anything but kDone the dry run is over.
  Result step();
  /// The mean loss of the last step's batches over all ranks, weighted by their examples; nothing where all were
  /// skipped.
  std::optional<double> loss() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levin
