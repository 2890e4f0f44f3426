#pragma once

#include <levin/core/interfaces/optimizer_handle.h>
#include <levin/core/optim/fused_optimizer.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace levin {

class Module;

/// What code that does not run again depended on when a step was recorded: the module's tree, its tensors and modes,
/// the optimizers, and the thread's settings.
class StepConditions {
 public:
  StepConditions(const Module& module, const std::vector<OptimizerHandle*>& optimizers);

  /// Returns what has changed since; nullptr when nothing has.
  const char* changed() const;

 private:
  struct Held {
    at::Tensor tensor;
    const void* data;
    bool requires_grad;
    bool is(const at::Tensor& now) const;
  };
  /// One module of the tree, with what it registered.
  struct Part {
    std::shared_ptr<const torch::nn::Module> module;
    bool training;
    std::vector<std::shared_ptr<torch::nn::Module>> children;
    std::vector<Held> parameters;
    std::vector<Held> buffers;
  };
  /// Settings of LibTorch that operators, or the code that calls them, look at.
  struct Settings {
    bool deterministic;
    bool grad_mode;
    bool anomaly_mode;
    bool autocast;
    int threads;
    at::ScalarType default_type;
    static Settings now();
    bool operator==(const Settings&) const = default;
  };

  std::vector<Part> parts_;
  std::vector<std::pair<optim::FusedOptimizer*, optim::FusedOptimizer::Snapshot>> optimizers_;
  Settings settings_;
};

}  // namespace levin
