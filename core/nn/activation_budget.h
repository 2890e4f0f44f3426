#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/base/operator_interceptor.h>
#include <levin/core/nn/kept_results.h>
#include <levin/core/nn/memory_set.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class ActivationBudget;

/// The first run of a checkpointed forward, watched: what its operators cost, and what it leaves for backward.
class MeasuredForward final : public std::enable_shared_from_this<MeasuredForward>, private OperatorInterceptor {
 public:
  MeasuredForward(std::shared_ptr<ActivationBudget> budget, size_t unit, size_t pass)
      : budget_(std::move(budget)), unit_(unit), pass_(pass) {}

  /// An operator that gives new tensors, in the order of calls; those that it calls itself count for it.
  struct Operator {
    std::string name;
    std::string work;  ///< name and shapes: what takes about the same time
    double seconds = 0;
    int64_t bytes = 0;  ///< of its results
  };

  void take_input(const at::Tensor& input);
  /// A tensor that an operation saved, and that is dropped.
  void save(const at::Tensor& tensor);
  /// Measures the operators of this thread while it lives; on a device it waits for each of them.
  [[nodiscard]] Scope watch() { return Scope(this); }
  /// The forward is over: from here on it counts.
  void finish();
  /// Backward needs what was dropped.
  void begin_backward();

  const std::vector<Operator>& operators() const { return operators_; }
  int64_t saved() const { return saved_bytes_; }
  size_t unit() const { return unit_; }

 private:
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack) override;

  const std::shared_ptr<ActivationBudget> budget_;
  const size_t unit_;
  const size_t pass_;
  std::optional<at::Device> device_;  ///< of inputs that are not on the CPU
  std::vector<Operator> operators_;
  MemorySet saved_;
  int64_t saved_bytes_ = 0;
};

/// What checkpointed units keep so that what they leave for backward stays within a size: measured once, in the second
/// of two steps that keep nothing (the first takes memory and fills caches), and then chosen by a knapsack, most time
/// of second forwards for the bytes. The units' inputs, and what the largest unit needs when it is recomputed, are
/// within the size, too. After `activation_memory_budget` of torch.compile (PyTorch, torch/_functorch/partitioners.py).
class ActivationBudget : public std::enable_shared_from_this<ActivationBudget> {
 public:
  /// Either `bytes` or `share`, of what the units leave without checkpointing.
  ActivationBudget(std::optional<int64_t> bytes, std::optional<double> share) : bytes_(bytes), share_(share) {}

  /// Returns the place of one more unit.
  size_t add_unit();
  /// Returns what a unit keeps; nullptr before it is chosen.
  std::shared_ptr<const ResultChoice> choice_of(size_t unit) const;
  /// Returns a meter for a forward of a unit, before it is chosen.
  std::shared_ptr<MeasuredForward> measure(size_t unit);

 private:
  friend class MeasuredForward;
  void take_input(const at::Tensor& input);
  void add(std::shared_ptr<MeasuredForward> forward, size_t pass);
  void end_pass(size_t pass);
  void choose() LEVIN_REQUIRES(mutex_);

  const std::optional<int64_t> bytes_;
  const std::optional<double> share_;
  mutable Mutex mutex_;
  size_t pass_ LEVIN_GUARDED_BY(mutex_) = 0;  ///< forwards between two backwards
  std::vector<std::shared_ptr<MeasuredForward>> forwards_ LEVIN_GUARDED_BY(mutex_);
  MemorySet inputs_ LEVIN_GUARDED_BY(mutex_);
  int64_t input_bytes_ LEVIN_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<const ResultChoice>> choices_ LEVIN_GUARDED_BY(mutex_);  ///< of the units
};

}  // namespace levin
