#pragma once

#include <levin/core/interfaces/step_output.h>
#include <levin/strategies/replicas/replica_threads.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin {

/// Joins the autograd graphs that replicas build in their own threads to the graph of the calling thread, so that one
/// backward() from there runs all of them at once and gradients arrive at the module's own parameters.
///
/// Two nodes do it. The first hands the gradients of the replicas' outputs to the replicas' threads, which run backward
/// while the calling thread does so for the first replica, whose graph is an ordinary part of the caller's. The last
/// waits for them and passes on the sum of their gradients, which autograd then accumulates: parameters that no
/// replica used get no gradient, hooks on the module's parameters run once, on the sum, and graphs built on top of the
/// outputs work as always. Only second derivatives do not pass through; they throw levin::Error.
class BackwardBridge {
 public:
  /// Make it before the forward pass and on the thread that will run the first replica, whose device is `device`, so
  /// that autograd takes up the last node after all those of the first replica.
  BackwardBridge(std::shared_ptr<ReplicaThreads> threads, int64_t replicas, const at::Device& device);

  /// Adds gradients that a replica (not the first) computes for `inner` to those of `outer`, which has its value.
  void add_leaf(const at::Tensor& outer, int64_t replica, const at::Tensor& inner);

  /// Makes the outputs of all parts usable on the calling thread and on `device`, differentiable where they were. To be
  /// called once, after the forward pass.
  void connect(std::vector<StepOutput>& outputs, const at::Device& device);

 private:
  struct Replica;
  struct Graphs;
  class StartNode;
  class FinishNode;

  std::shared_ptr<Graphs> graphs_;
  std::shared_ptr<FinishNode> finish_;
};

}  // namespace levin
