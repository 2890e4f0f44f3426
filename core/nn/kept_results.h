#pragma once

#include <levin/core/base/operator_interceptor.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// Which results of a checkpointed forward are kept.
class ResultChoice {
 public:
  virtual ~ResultChoice() = default;
  /// `index`: how many operators that give new tensors the forward has run before.
  virtual bool contains(const c10::OperatorHandle& op, size_t index) const = 0;
  /// Whether operators that another one calls are passed over, so that what is chosen does not change the indices.
  virtual bool passes_over_inner() const { return false; }
  /// Called before a second forward.
  virtual void begin_second_forward() const {}
};

/// Whether results of an operator can be kept: they are its own, no views of arguments and none that it wrote to.
bool gives_new_tensors(const c10::FunctionSchema& schema);

/// Operators by name: those of LibTorch (`mm`, `convolution`) and of other libraries (`levin::rms_norm`), and `linear`,
/// `matmul` and `scaled_dot_product_attention` for all that these become.
class OperatorChoice final : public ResultChoice {
 public:
  /// Throws ConfigError for a name that no operator has. `option`: for the message.
  OperatorChoice(const std::vector<std::string>& names, const std::string& option);

  bool contains(const c10::OperatorHandle& op, size_t index) const override;
  /// Says once of which names `contains` has met no operator so far.
  void begin_second_forward() const override;

 private:
  struct Name {
    std::string given;
    std::vector<std::string> operators;  ///< with their namespaces; one that ends with `*` stands for what begins so
    mutable std::atomic<bool> is_met{false};
  };
  std::vector<std::unique_ptr<Name>> names_;
  mutable std::atomic<bool> has_warned_{false};
};

/// Returns how many operators of this thread were given kept results instead of being run.
int64_t operators_given();

/// Results of the chosen operators of a forward. A second run of the forward takes them instead of computing them
/// again, and is equal to the bit: a result that was modified in place since is computed again, and random generators
/// are set to their state after the operator. Operators that write to their arguments or return views always run. A
/// second run of other operators than the first computes what it does not find. Autocast's conversions of weights,
/// which depend on what ran before, are passed over (see is_converting_weight).
class KeptResults final : private OperatorInterceptor {
 public:
  explicit KeptResults(std::shared_ptr<const ResultChoice> choice) : choice_(std::move(choice)) {}

  /// Keeps what the chosen operators of this thread return while it lives.
  [[nodiscard]] Scope keep();
  /// Returns the kept results from the same calls, in their order, while it lives. `for_good`: this is the last time,
  /// so that their memory is freed.
  [[nodiscard]] Scope give(bool for_good);

 private:
  struct Result {
    at::Tensor tensor;
    int64_t version = 0;
    c10::IValue other;  ///< of what is no tensor
  };
  struct Call {
    c10::OperatorHandle op;
    size_t history = 0;
    std::vector<Result> results;
    std::vector<std::pair<std::optional<at::Device>, at::Tensor>> random;  ///< of generators, behind it
  };

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack) override;
  void leave_kept(c10::IValue& handed_over) const;
  void keep_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  bool give_results(Call& kept, const c10::OperatorHandle& op, torch::jit::Stack& stack) const;

  const std::shared_ptr<const ResultChoice> choice_;
  std::vector<Call> calls_;
  size_t next_ = 0;     ///< to be given
  size_t index_ = 0;    ///< of the next operator that gives new tensors
  size_t history_ = 0;  ///< of those before it: a kept result is given to the same call only
  bool gives_ = false;
  bool for_good_ = false;
};

}  // namespace levin
