#pragma once

#include <levin/core/data/batch.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/core/nn/named_units.h>
#include <levin/strategies/replicas/intra_op_threads.h>
#include <levin/strategies/replicas/replica_logs.h>
#include <levin/strategies/replicas/replica_threads.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

class BackwardBridge;
class Module;

/// A module and replicas of it, one a device, that share the work on each batch.
///
/// The module itself is the first replica and runs in the calling thread; the others are built from its init options
/// and run in threads of their own. Before each batch they take over the module's parameters, buffers, train or eval
/// modes, which parameters are frozen, and the hooks of its units. Replicas on the module's device share the memory of
/// its parameters, so that a step must not write to parameters; buffers are each replica's own, and those of the module
/// count, as in PyTorch. Plain members are not taken over: what hooks change and steps need belongs into a buffer.
class ReplicaGroup {
 public:
  using Step = std::function<StepOutput(Module& module, const Batch& part)>;

  /// The module is on the first device already and outlives the group. Throws levin::Error when the module cannot be
  /// built again, or when what is built has other parameters and buffers.
  ReplicaGroup(Module& module, std::vector<at::Device> devices);
  ~ReplicaGroup();
  ReplicaGroup(const ReplicaGroup&) = delete;
  ReplicaGroup& operator=(const ReplicaGroup&) = delete;

  /// Scope around `run` and the backward pass from its output: shares the cores between the replicas, and at its end,
  /// an error's included, no replica runs any more.
  class [[nodiscard]] StepScope {
   public:
    explicit StepScope(ReplicaGroup& group) : group_(group), cores_(group.intra_op_threads_) {}
    ~StepScope() { group_.threads_->wait_idle(); }
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

   private:
    ReplicaGroup& group_;
    IntraOpThreadsScope cores_;
  };

  /// Splits the batch into parts as even as possible, at most one a replica, runs the step on all at once, hands what
  /// they logged to the module's runtime and gathers their outputs on the first device (see gather_outputs). The
  /// gradients of the gathered output flow into the module's parameters. Throws what the first failing replica threw,
  /// after all have ended.
  StepOutput run(const Batch& batch, const Step& step);
  /// Part of the newest batch's examples that its loss is of: not those that a replica skipped.
  double loss_share() const { return loss_share_; }

 private:
  struct Replica;

  void build(size_t index);
  void take_over(Replica& replica);
  std::vector<Batch> scatter(const Batch& batch, BackwardBridge* bridge);
  Module& module_of(size_t index);

  Module& module_;
  std::vector<at::Device> devices_;
  int intra_op_threads_;
  std::vector<torch::nn::Module*> submodules_;      ///< of the module, parents first
  std::vector<NamedUnit> units_;                    ///< of the module
  std::vector<at::Tensor> parameters_;              ///< of the module
  std::vector<at::Tensor> buffers_;                 ///< of the module
  std::vector<std::unique_ptr<Replica>> replicas_;  ///< all but the first
  ReplicaLogs logs_;
  double loss_share_ = 1;
  std::shared_ptr<ReplicaThreads> threads_;  ///< graphs that outlive the group hold them too
};

}  // namespace levin
