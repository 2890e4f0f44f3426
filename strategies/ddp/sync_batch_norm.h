#pragma once

#include <levin/core/nn/batch_norm_scope.h>

#include <memory>

namespace levin {

class Collective;
class StepOutput;

/// Scope in which BatchNorm in training mode that this thread runs takes its statistics over the batches of all ranks,
/// as if one process had the whole batch: unmodified torch::nn::BatchNorm1d to 3d, and the function behind them.
/// InstanceNorm keeps to itself.
///
/// To be held around the forward pass of training; backward finds the ranks by itself, on any thread, later too. Every
/// rank must run the same modules in the same order, in forward and in backward; batches may differ in size and may be
/// empty, but torch::nn::BatchNorm1d to 3d refuse a rank with one value a channel by themselves. Evaluation belongs
/// outside, since ranks need not evaluate equally many batches. Each layer costs one all-gather of 2 C + 1 numbers in
/// forward and one all-reduce of 2 C in backward. Only first derivatives are there: backward with create_graph throws
/// levin::Error.
///
/// Scopes nest; nullptr, or a group of one rank, gives each rank its own statistics again. Threads without a scope get
/// the very kernels of LibTorch. See BatchNormScope, the innermost of which counts.
class [[nodiscard]] SyncBatchNormScope {
 public:
  explicit SyncBatchNormScope(std::shared_ptr<Collective> collective);

 private:
  BatchNormScope scope_;
};

/// Throws levin::Error where a rank with such a scope skips a batch: in backward the others' layers wait for it.
void require_loss_for_sync_batch_norm(const StepOutput& output);

}  // namespace levin
