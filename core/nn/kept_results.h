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

/// Operators by name: those of LibTorch (`mm`, `convolution`) and of other libraries (`levin::rms_norm`), and `linear`,
/// `matmul` and `scaled_dot_product_attention` for all that these become.
class OperatorChoice {
 public:
  /// Throws ConfigError for a name that no operator has. `option`: for the message.
  OperatorChoice(const std::vector<std::string>& names, const std::string& option);

  bool contains(const c10::OperatorHandle& op) const;
  /// Says once of which names `contains` has met no operator so far.
  void warn_of_unmet() const;

 private:
  struct Name {
    std::string given;
    std::vector<std::string> operators;  ///< with their namespaces; one that ends with `*` stands for what begins so
    mutable std::atomic<bool> is_met{false};
  };
  std::vector<std::unique_ptr<Name>> names_;
  mutable std::atomic<bool> has_warned_{false};
};

/// Results of the chosen operators of a forward. A second run of the forward takes them instead of computing them
/// again, and is equal to the bit: a result that was modified in place since is computed again, and random generators
/// are set to their state after the operator. Operators that write to their arguments or return views always run.
class KeptResults final : private OperatorInterceptor {
 public:
  explicit KeptResults(std::shared_ptr<const OperatorChoice> choice) : choice_(std::move(choice)) {}

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
    std::vector<Result> results;
    std::vector<std::pair<std::optional<at::Device>, at::Tensor>> random;  ///< of generators, behind it
  };

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack) override;
  void leave_kept(c10::IValue& handed_over) const;
  void keep_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  bool give_results(Call& kept, const c10::OperatorHandle& op, torch::jit::Stack& stack) const;

  const std::shared_ptr<const OperatorChoice> choice_;
  std::vector<Call> calls_;
  size_t next_ = 0;  ///< to be given
  bool gives_ = false;
  bool for_good_ = false;
};

}  // namespace levin
