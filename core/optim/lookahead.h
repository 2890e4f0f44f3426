#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/optim/wrapped_optimizer.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

namespace levin::optim {

/// Options of Lookahead, with the names and defaults of its paper.
struct LookaheadOptions {
  int64_t k = 5;       ///< steps of the other optimizer for one of the slow weights
  double alpha = 0.5;  ///< part of the way to the fast weights that a step of the slow ones takes

  bool operator==(const LookaheadOptions&) const = default;
  static void describe(Schema<LookaheadOptions>& schema);
};

/// Every k steps of another optimizer goes back a part of the way (Zhang et al., 2019, arXiv:1907.08610). Keeps a
/// second copy of the weights. Divides a model where the other optimizer does.
class Lookahead final : public WrappedOptimizer {
 public:
  using Options = LookaheadOptions;

  explicit Lookahead(std::shared_ptr<torch::optim::Optimizer> base, const Options& options = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void load_parameter_states(const ParameterNames& names, const State& states) override;
  OptimizerCapabilities capabilities() const override {
    const OptimizerCapabilities base = base_capabilities();
    return {.element_wise = base.element_wise, .tensor_wise = base.tensor_wise};
  }

 protected:
  void save_own(const at::Tensor& param, State& saved) const override;
  void load_own(const at::Tensor& param, State* saved) override;

 private:
  /// Makes the slow weights of parameters that have none, of the weights of now.
  void remember_weights();
  void step_slow_weights();

  Options options_;
  int64_t steps_ = 0;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> slow_weights_;
};

}  // namespace levin::optim
