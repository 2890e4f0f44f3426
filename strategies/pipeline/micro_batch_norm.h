#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/nn/batch_norm_scope.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

/// Moments of each channel of a batch.
struct ChannelMoments {
  at::Tensor mean;
  at::Tensor variance;  ///< unbiased
  at::Tensor count;     ///< the elements of a channel
};

/// The running statistics of BatchNorm in a training step that runs its batch as several micro-batches. Each
/// micro-batch is normalised with its own statistics, as in torchgpipe (Kim et al., 2020, arXiv:2004.09910); the
/// running ones become what they would be had the layers seen the whole batch at once: one update with its mean and
/// unbiased variance, num_batches_tracked up by one, the cumulative average (momentum nullopt) too.
///
///   MicroBatchStatistics statistics(module);
///   for (int64_t i = 0; i < micro_batches; ++i) {
///     const MicroBatchNormScope scope(statistics, i);
///     losses.push_back(forward(i));
///   }
///   run_backward(losses);
///   statistics.apply();
///
/// A layer that a forward calls several times gets as many updates: the n-th over the n-th calls of all micro-batches.
/// One that ran in some micro-batches only has these for the batch; one that did not run keeps what it has. Running
/// statistics of InstanceNorm are kept likewise. One object a step; several threads may run micro-batches of it, each
/// layer on one thread at a time. Without apply(), as after an error, running means and variances are untouched.
class MicroBatchStatistics {
 public:
  /// Begins a step. `module` holds the BatchNorm layers whose num_batches_tracked is to come out right.
  explicit MicroBatchStatistics(const torch::nn::Module& module);
  MicroBatchStatistics(const MicroBatchStatistics&) = delete;
  MicroBatchStatistics& operator=(const MicroBatchStatistics&) = delete;

  /// Ends the step: updates the layers in place, once all micro-batches ran. Called again it does nothing.
  void apply();

 private:
  friend class MicroBatchNorm;

  /// One call where the batch is whole: the n-th of a layer in each micro-batch.
  struct WholeCall {
    double momentum = 0;  ///< that of its first micro-batch
    std::vector<ChannelMoments> parts;
  };
  struct Layer {
    at::Tensor running_mean;
    at::Tensor running_var;
    at::Tensor num_batches_tracked;  ///< undefined where a function was called, and of InstanceNorm
    at::Tensor batches_before;       ///< num_batches_tracked when the step began
    bool is_cumulative = false;
    bool is_instance_norm = false;
    std::map<int64_t, size_t> calls_made;  ///< by micro-batch
    std::vector<WholeCall> calls;
  };

  void record(const BatchNormCall& call, bool is_instance_norm, int64_t micro_batch, ChannelMoments moments);

  /// Updates all layers with their n-th call; false when there is none.
  bool update_call(size_t call) LEVIN_REQUIRES(mutex_);
  static void update_layers(const std::vector<Layer*>& layers, size_t call);

  Mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Layer> layers_ LEVIN_GUARDED_BY(mutex_);  ///< by running mean
};

/// Scope around the forward of one micro-batch: layers that this thread runs in training mode compute what they
/// would outside, to the bit, and hand their statistics to the step's MicroBatchStatistics. Layers without running
/// statistics, in eval mode and on other threads are left alone. Backward belongs outside; forwards that activation
/// checkpointing runs again there do not count again.
///
/// Inside of a SyncBatchNormScope both work: a micro-batch is then that of all ranks. One opened inside of this scope,
/// as any BatchNormScope, takes its place; so does another scope of this class.
class [[nodiscard]] MicroBatchNormScope {
 public:
  /// `statistics` must outlive the scope. `micro_batch` is any number that the micro-batch has in the step.
  MicroBatchNormScope(MicroBatchStatistics& statistics, int64_t micro_batch);

 private:
  BatchNormScope scope_;
};

}  // namespace levin
