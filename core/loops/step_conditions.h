#pragma once

#include <levin/core/interfaces/optimizer_handle.h>
#include <levin/core/nn/unit.h>
#include <levin/core/optim/fused_optimizer.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace levin {

class Module;

/// Returns how many hooks run when a tensor gets its gradient.
size_t gradient_hooks_of(const at::Tensor& tensor);

/// What code that does not run again depended on when a step was recorded: the module's tree, its tensors, modes and
/// hooks, the optimizers, and the thread's settings.
class StepConditions {
 public:
  StepConditions(const Module& module, const std::vector<OptimizerHandle*>& optimizers);

  /// Returns what has changed since; nullptr when nothing has.
  const char* changed() const;
  /// Of this, what a step that has begun needs to go on: the memory of parameters and buffers, and, where asked for,
  /// `requires_grad` and what the optimizers step with.
  struct Looks {
    bool flags = true;
    bool optimizers = true;
  };
  const char* changed_inside(const Looks& looks) const;

  /// Takes note of how often parameters and buffers have been written to: at the end of a step.
  void note_writes();
  /// Whether they have been written to since.
  bool were_written() const;

 private:
  struct Held {
    at::Tensor tensor;
    const void* data;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    at::ScalarType type;
    bool requires_grad;
    size_t hooks;
    bool is(const at::Tensor& now, bool flags) const;
    bool has_its_hooks() const;
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
    std::thread::id thread;  ///< whose random generator operators use
    static Settings now();
    bool operator==(const Settings&) const = default;
  };

  /// A unit of the module, with what is attached to it.
  struct AttachedUnit {
    const Unit* unit;
    UnitHooks hooks;
    const UnitRunner* runner;
  };
  /// An option of a module that is a number, or none.
  struct Number {
    std::function<std::optional<double>()> now;
    std::optional<double> value;
  };

  void note_options(const torch::nn::Module& module);
  bool same_tensors(bool flags) const;
  bool same_optimizers() const;

  std::vector<Part> parts_;
  std::vector<AttachedUnit> units_;
  std::vector<Number> numbers_;
  std::vector<std::pair<at::Tensor, uint32_t>> versions_;  ///< of parameters and buffers, at the end of a step
  std::vector<std::pair<optim::FusedOptimizer*, optim::FusedOptimizer::Snapshot>> optimizers_;
  Settings settings_;
};

}  // namespace levin
