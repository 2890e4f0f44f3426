#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace c10 {
struct Allocator;
}

namespace levin {

class MemoryAccount;

/// Measures what a forward and backward on one device allocate beside what is there before them: activations, their
/// gradients, and what operations need while they run. On the CPU, LibTorch allocates by an AccountingAllocator while
/// this lives; it counts what the calling thread allocates.
class StepMemory {
 public:
  /// From the gradient before it (the first: from the beginning of the forward) to that of a parameter.
  struct Part {
    at::Tensor parameter;
    int64_t most = 0;    ///< bytes at once, without gradients of earlier parts
    int64_t at_end = 0;  ///< when the gradient, which counts, is there
  };

  StepMemory(const torch::nn::Module& module, const at::Device& device);
  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  /// Runs a forward and backward before which no parameter has a gradient.
  void run(const std::function<void()>& forward_backward);
  /// Of the last run, in the order in which gradients came; empty where it ended with an exception.
  const std::vector<Part>& parts() const { return parts_; }

 private:
  void on_gradient(const at::Tensor& parameter, const at::Tensor& gradient);
  int64_t in_use() const;
  int64_t peak() const;
  void restart_peak();

  const at::Device device_;
  c10::Allocator* allocator_ = nullptr;  ///< of the CPU, before
  MemoryAccount* account_ = nullptr;     ///< of the CPU
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  bool runs_ = false;
  int64_t before_ = 0;     ///< bytes in use
  int64_t gradients_ = 0;  ///< bytes of those that came
  std::vector<Part> parts_;
};

}  // namespace levin
