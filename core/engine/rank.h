#pragma once

#include <levin/core/data/data_loader.h>
#include <levin/core/interfaces/backward_options.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/core/metrics/metric_map.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin {

class RankCalls;
class Trainer;

/// How one training step is taken.
struct TrainStepOptions {
  /// Takes the place of the module's training_step: returns the loss, or steps by hand in manual optimization. The
  /// batch lies on the device. Such a step is not recorded (`graph`).
  std::function<StepOutput(Module& module, const Batch& batch)> step = {};
  /// The batch is the last one of the epoch: an accumulation window ends with it. Inside of `epoch` only.
  bool is_last = false;
};

/// The steps of one rank, for a program that has a loop of its own; see Engine. Every rank makes the same calls in the
/// same order. Any thread may call, one at a time; `request_stop` is always allowed. Wrong calls throw levin::Error and
/// change nothing; what goes wrong inside of a call ends the engine, with the error as from `fit`.
class Rank {
 public:
  virtual ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // ---- Steps.

  /// Trains on a batch as fit does: transfer, hooks, forward, backward and, at the end of an accumulation window, the
  /// optimizer step with its schedules. `batch`: this rank's part, on the CPU or its device. Returns the output of
  /// training_step, whose loss is to be read before the next step; one without a loss where the module's
  /// on_train_batch_start ended the epoch. A batch without rows counts for nothing, and its logs are left out.
  StepOutput train_step(Batch batch, const TrainStepOptions& options = {});
  /// Runs validation_step on a batch, without gradients and in evaluation mode. What it logs is in
  /// `trainer().callback_metrics()` then, of this rank alone. Validation's hooks belong to `validate`.
  StepOutput eval_step(Batch batch);
  /// Runs predict_step likewise; the prediction lies on the device. A loss may be made of what both return.
  Batch predict_step(Batch batch);
  /// Validates as fit does, with all hooks; returns a map of metrics for each loader. Without loaders those of the
  /// module's val_dataloader.
  std::vector<MetricMap> validate(const DataLoaders& loaders = {});
  /// Runs `steps` as an epoch: callbacks and the module are told of its start and its end, where epoch metrics are
  /// logged, schedulers of epochs step and checkpoints are saved. An error in `steps` leaves the epoch unfinished: the
  /// next one goes on with it. Throws levin::Error where it ends inside of an accumulation window.
  void epoch(const std::function<void()>& steps);
  /// Makes an optimizer step follow every `batches` batches, from the next window on.
  void accumulate(int64_t batches);

  // ---- Inside of a step of a module with manual optimization.

  /// As Module::manual_backward; `{.sync_grad = false}` combines nothing over the ranks.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});
  /// Steps the optimizer at an index, with the hooks around it.
  void optimizer_step(int64_t index = 0);

  // ---- Ranks.

  /// As Module::all_gather.
  at::Tensor all_gather(const at::Tensor& tensor, bool sync_grads = false);
  /// Waits for all ranks.
  void barrier();
  int64_t global_rank() const;
  int64_t world_size() const;
  bool is_global_zero() const { return global_rank() == 0; }
  /// Device of this rank, known from the first step on.
  const at::Device& device() const;

  // ---- Logging and checkpoints.

  /// Between steps: hands rank 0's value to the loggers at the present step. In a step: as Module::log.
  void log(const std::string& name, double value);
  /// Saves what fit would save here, and can resume from. Collective. Throws levin::Error inside of an accumulation
  /// window where ranks divide the model.
  void save(const std::string& path);
  /// Position of the next batch in this loader, for `loader.pass`: after `load` of a checkpoint of fit or of an engine,
  /// the batch that follows. Throws levin::Error where the loader's batches are not those before the checkpoint.
  DataLoaderPosition position(const DataLoader& loader);

  // ---- Where training is, and its end.

  int64_t step() const;           ///< optimizer steps taken
  int64_t current_epoch() const;  ///< 0-based
  /// Asks for the end of the loop. Thread-safe.
  void request_stop(const std::string& reason);
  /// Whether the loop shall end before the next batch: at max_steps, max_epochs or max_time, or because a callback, the
  /// module or request_stop asks for it, on any rank. The same on all ranks, all of which ask.
  bool stop_requested();

  /// The trainer behind: what callbacks get. Its fit, validate, test and predict are refused until the engine ends.
  Trainer& trainer() const;
  Module& module() const;

 protected:
  explicit Rank(std::shared_ptr<RankCalls> calls);

 private:
  friend class Engine;
  void require_in_step(const char* name) const;

  const std::shared_ptr<RankCalls> calls_;
};

}  // namespace levin
