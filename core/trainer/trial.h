#pragma once

#include <levin/core/trainer/hooks.h>
#include <levin/core/trainer/optimization.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

class Session;

struct TrialOptions {
  /// Examples in a batch of one rank; only full batches are used then. Unset: the batches of the fit.
  std::optional<int64_t> batch_size = {};
  /// One rank may run out of memory, and all step back together. For this the ranks do not communicate inside a step:
  /// gradients, buffers and BatchNorm's statistics stay each rank's own. They agree after every forward and backward,
  /// before anything that might communicate again, and after every optimizer step.
  bool may_run_out_of_memory = false;
};

/// Some training steps before a fit, to find something out, and all of it taken back: afterwards weights, buffers,
/// gradients, optimizers, schedulers, precision, the state that module and data module save, random generators, logged
/// metrics, loaders and counters are to the bit what they were. Tensors keep their identity.
///
/// Callbacks and loggers see nothing of it. The module's hooks are called, from on_train_start on, except for those at
/// the end of an epoch and of training; schedulers do not step. What a module keeps in plain members is its own affair:
/// on_save_checkpoint and on_load_checkpoint are called around a trial. Made in on_fit_start, on all ranks alike.
class Trial {
 public:
  explicit Trial(Trainer& trainer, const TrialOptions& options = {});
  /// Takes everything back.
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  /// How a step went, the same on all ranks. The worst of the ranks' counts, which is the greatest.
  enum class Result { kDone = 0, kNoData, kOutOfMemory, kInterrupted };
  /// One optimizer step: a whole accumulation window, or its first two batches where memory is what matters. Where the
  /// data of an epoch end, the next one follows. After anything but kDone the trial is over.
  Result step();
  /// The mean loss of the last step's batches over all ranks, weighted by their examples; nothing where all were
  /// skipped.
  std::optional<double> loss() const;

 private:
  /// What a rank tells the others of a batch.
  struct News {
    Result result = Result::kDone;
    double loss = 0;  ///< times its weight
    double weight = 0;
  };
  static std::string to_text(const News& news);
  static News from_text(const std::string& text);
  /// The worst result, and the sums of the rest, over the ranks; a collective.
  News combine(const News& own) const;

  /// Sees to it that the next batch is in `batch_`, on the device.
  Result fetch();
  Result train_batch();
  template <class Function>
  Result attempt(const Function& function) const;
  StepOutput agree_after(const Optimization::MicroBatch& run);
  void take_back();

  RankCore& core_;
  Session& session_;
  Hooks hooks_;
  const TrialOptions options_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();

  DataLoader loader_;

  // ---- What was there before.
  State snapshot_;
  FitProgress progress_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::pair<size_t, size_t> first_callbacks_;
  std::vector<bool> training_;       ///< mode of each submodule
  std::vector<bool> requires_grad_;  ///< of each parameter
  bool stop_requested_;
  std::string stop_wish_;

  // ---- The steps.
  metrics::Collector metrics_;
  std::optional<DataLoader::Pass> pass_;
  int64_t passes_ = 0;
  int64_t in_pass_ = 0;  ///< batches of this pass that were trained on
  bool begun_ = false;
  bool agreed_ = false;  ///< in the micro-batch under way
  Batch batch_;
  Optimization::Place place_;
  std::vector<double> losses_;  ///< of the last step's batches, over all ranks
};

}  // namespace levin
